"""The library without a server: `open`, `Log`, `Topic`, `Scan`, `replay`."""

from cordwood.embedded.log import Log
from cordwood.embedded.opening import open, open_when_free  # noqa: A004 - cordwood.open
from cordwood.embedded.replaying import Replayed, replay
from cordwood.embedded.scan import BATCH_ROWS, decoded_rows, in_batches, place_columns
from cordwood.embedded.topic import Placement, Topic

__all__ = [
    "BATCH_ROWS",
    "Log",
    "Placement",
    "Replayed",
    "Topic",
    "decoded_rows",
    "in_batches",
    "open",
    "open_when_free",
    "place_columns",
    "replay",
]
