"""Reading a partition: the published view, the frames of its segments, and the reader of the writer's log."""

from cordwood.storage.log.reading.frame_walk import (
    REINDEX_WINDOW_BYTES,
    Bounds,
    FrameRun,
    Window,
    checked_sha256,
    index_frames,
    indexes_of,
    left_before,
    note_frames,
    read_run,
    walk,
)
from cordwood.storage.log.reading.growth import GrowthWatch
from cordwood.storage.log.reading.hold import VisibilityHold
from cordwood.storage.log.reading.reader import LogReader
from cordwood.storage.log.reading.view import Fetched, Published, Standing, View, bounds_of

__all__ = [
    "REINDEX_WINDOW_BYTES",
    "Bounds",
    "Fetched",
    "FrameRun",
    "GrowthWatch",
    "LogReader",
    "Published",
    "Standing",
    "View",
    "VisibilityHold",
    "Window",
    "bounds_of",
    "checked_sha256",
    "index_frames",
    "indexes_of",
    "left_before",
    "note_frames",
    "read_run",
    "walk",
]
