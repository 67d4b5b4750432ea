"""Inspection as library calls: the state of a data directory and of this installation, frames of a file.

Nothing here takes a lock or changes a byte, and all of it may run beside a writer.
"""

from cordwood.inspection.directory import inspect_directory, is_written
from cordwood.inspection.findings import CheckedItem, Level
from cordwood.inspection.indexes import InspectedIndex, inspect_index, is_index
from cordwood.inspection.installation import inspect_installation, optional_package
from cordwood.inspection.segment import InspectedFrame, SegmentFrames, format_of, inspect_segment
from cordwood.inspection.segment_list import ListedSegment, list_segments

__all__ = [
    "CheckedItem",
    "InspectedFrame",
    "InspectedIndex",
    "Level",
    "ListedSegment",
    "SegmentFrames",
    "format_of",
    "inspect_directory",
    "inspect_index",
    "inspect_installation",
    "inspect_segment",
    "is_index",
    "is_written",
    "list_segments",
    "optional_package",
]
