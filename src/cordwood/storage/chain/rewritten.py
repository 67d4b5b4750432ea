"""Find the frames that a compaction changed, and keep lists of their records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cordwood.errors import EvidenceRefused
from cordwood.storage.chain.frame_leaves import FrameBytes, ListedFrame, frame_leaf, frames_of, listed_frames
from cordwood.storage.chain.lists import ListWriter
from cordwood.storage.chain.writer import ChainWriter
from cordwood.storage.log import FrameRun


class OriginalRun(NamedTuple):
    """Frames of a segment that is replaced, and the generation of the segment."""

    generation: int
    run: FrameRun


class _Original(NamedTuple):
    """A frame of a segment that is replaced, number *at* of its run."""

    frame: FrameBytes
    source: OriginalRun
    at: int


class RewrittenFrames:
    """Compares the frames of segments with those that replace them, both in the order of offsets."""

    def __init__(
        self, chain: ChainWriter, lists: ListWriter, originals: Iterable[OriginalRun], *, evidence: bool
    ) -> None:
        """Write the lists of changed frames to *lists*. Without *evidence*, any frame may be changed."""
        #: Whether the records of every changed frame are listed.
        self.all_listed = True
        self._chain = chain
        self._lists = lists
        self._evidence = evidence
        self._originals = _each(originals)
        self._next = next(self._originals, None)
        self._listed: tuple[FrameRun | None, list[ListedFrame]] = (None, [])

    def is_unchanged(self, frame: FrameBytes) -> bool:
        """Return whether *frame*, the next one of the new segment, is a copy of the original at its offset.

        The list of a changed original is kept, and so are those of originals before it, which are gone.

        Raises:
            EvidenceRefused: If an original was changed that must stay as it is.
        """
        while self._next is not None and self._next.frame.first_offset <= frame.first_offset:
            original, self._next = self._next, next(self._originals, None)
            if original.frame == frame:
                return True
            self._keep(original)
        return False

    def finish(self) -> None:
        """Keep the lists of the originals after the last frame; raises as `is_unchanged`."""
        while self._next is not None:
            original, self._next = self._next, next(self._originals, None)
            self._keep(original)

    def _keep(self, original: _Original) -> None:
        frame, chain = original.frame, self._chain
        leaf = chain.find(frame.first_offset)
        if original.source.run.format.name == "shared":
            # Space is reclaimed whatever the leaf: frames from before such leaves leave no evidence.
            if leaf is not None and chain.commits_to_parts(leaf):
                self._lists.add_envelope(leaf, frame.data)
            return
        if leaf is None or not chain.commits_to_parts(leaf):
            if self._evidence:
                raise EvidenceRefused(f"the leaf of offset {frame.first_offset} does not commit to records")
            self.all_listed = False
            return
        listed = self._listed_frame(original)
        if listed.leaf == chain.leaf(leaf):
            if listed.facts.is_listable:
                self._lists.add(leaf, listed.facts, listed.items)
            elif self._evidence:
                raise EvidenceRefused(f"the frame at offset {frame.first_offset} has gaps already")
            else:
                self.all_listed = False
            return
        # An earlier compaction changed it, and kept its list.
        moved = chain.find(frame.first_offset, original.source.generation)
        known = (frame_leaf(frame), chain.moved_leaf(frame.data))
        if moved is None or chain.leaf(moved) not in known:
            raise EvidenceRefused(f"the frame at offset {frame.first_offset} is not what was appended there")

    def _listed_frame(self, original: _Original) -> ListedFrame:
        run, listed = self._listed
        if run is not original.source.run:
            assert self._chain.salt is not None
            listed = list(listed_frames(original.source.run, self._chain.salt))
            self._listed = (original.source.run, listed)
        return listed[original.at]


def _each(originals: Iterable[OriginalRun]) -> Iterator[_Original]:
    for source in originals:
        for at, frame in enumerate(frames_of(source.run)):
            yield _Original(frame, source, at)
