"""The frames of a segment that are still there, each with its leaf as first appended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from cordwood.disk import ReadableFiles
from cordwood.errors import FrameError
from cordwood.verify.chain import Leaf, LeafFiles
from cordwood.verify.frame import FileWindows
from cordwood.verify.report import Tally
from cordwood.verify.segments import AnyFrame, SegmentPlan, open_reader

#: The number of leaves read into memory at once.
_LEAVES = 8192


class LeafedFrame(NamedTuple):
    """A frame of the log at *path*, its first bytes or all of them, and its leaf; None if it has none.

    ``after`` is the number of the last leaf before it.
    """

    path: str
    frame: AnyFrame
    data: memoryview
    leaf: Leaf | None
    after: int


def leafed_frames(
    files: ReadableFiles, plan: SegmentPlan, bytes_max: int | None = None
) -> Iterator[LeafedFrame]:
    """Yield the frames of a segment with a chain, with at most *bytes_max* bytes of each.

    Ends at damage, and before files that cannot be read: the check of the segment reports both.
    """
    assert plan.leaves is not None
    path = f"{plan.path}.{plan.log_suffix}"
    with contextlib.suppress(OSError, FrameError), contextlib.ExitStack() as stack:
        file = stack.enter_context(contextlib.closing(files.open(path, "read")))
        reader = stack.enter_context(contextlib.closing(open_reader(files, plan)))
        known = stack.enter_context(contextlib.closing(LeafFiles(files, plan.leaves.chain)))
        leaves = known.walk(plan.leaves.main, _LEAVES)
        leaf, after = next(leaves, None), 0
        windows, position = FileWindows(file, min(plan.stop, file.size()), Tally(), hashed=False), 0
        while position < windows.stop:
            frame: AnyFrame = reader.at(windows, position, windows.stop)
            while leaf is not None and leaf.first_offset < frame.base_offset:
                after, leaf = leaf.number, next(leaves, None)
            own = leaf if leaf is not None and leaf.first_offset == frame.base_offset else None
            size = frame.size if bytes_max is None else min(frame.size, bytes_max)
            at = windows.load(position, size)
            yield LeafedFrame(path, frame, memoryview(windows.data)[at : at + size], own, after)
            position += frame.size
