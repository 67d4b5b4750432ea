"""The signed checkpoints of a directory's chains: those stored in it, and those given by the caller."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.disk import ReadableFiles, join, read_file
from cordwood.errors import EvidenceRefused, SigningUnavailable
from cordwood.integrity import Checkpoint, VerifierKey, open_checkpoint, unverified
from cordwood.verify.catalogue import CatalogueContent
from cordwood.verify.metadata import read_bytes
from cordwood.verify.report import Only, Severity, Tally, VerifyProgress

_NAME = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,18})\.note\Z")


@dataclass(frozen=True, slots=True)
class GivenCheckpoint:
    """A note given by the caller, called *name* in reports, and its pinned key."""

    name: str
    note: str
    key: VerifierKey


@dataclass(frozen=True, slots=True)
class Claim:
    """A checkpoint to compare with a chain, read from *path*: *given* by the caller, or stored beside it."""

    path: str
    said: Checkpoint
    given: bool = False

    @property
    def place(self) -> str:
        """Its topic and partition, without the broker."""
        return "/".join(self.said.origin.rsplit("/", 2)[-2:])


class Claims:
    """All checkpoints, read before the chains, which only grow.

    The walk takes the checkpoints of each partition; `finish` reports faults of the others.
    """

    def __init__(
        self,
        files: ReadableFiles,
        data: str,
        given: Sequence[GivenCheckpoint],
        progress: VerifyProgress | None,
    ) -> None:
        """Read all checkpoints and check each signature."""
        self._files = files
        self._directory = join(data, "meta", "checkpoints")
        self._tally = Tally(progress)
        self._kept: dict[tuple[str, int], list[Claim]] = {}
        self._given: list[Claim] = []
        self._met: set[object] = set()
        self._unsigned = 0
        for each in given:
            try:
                self._given.append(Claim(each.name, self._opened(each.note, each.key), given=True))
            except EvidenceRefused as refusal:
                self._refuse(each.name, refusal)
        with self._tally.reading(self._directory):
            self._read_kept(join(data, "meta", "keys", "checkpoint.pub"))

    def of(self, topic: str, topic_id: str, partition: int) -> list[Claim]:
        """Return the checkpoints of a partition, smallest first."""
        place = f"{topic}/{partition}"
        self._met |= {(topic_id, partition), place}
        given = [each for each in self._given if each.place == place]
        return sorted([*given, *self._kept.get((topic_id, partition), ())], key=lambda each: each.said.size)

    def finish(self, brokers: tuple[str, ...], catalogue: CatalogueContent | None, only: Only) -> Tally:
        """Return the faults of checkpoints that need no chain.

        *brokers* are the ids of the directory and of its backup's source, as far as readable; *catalogue* is
        None if unreadable; *only* is the checked part.
        """
        for each in self._given:
            if each.place not in self._met:
                severity: Severity = "corruption" if only == Only() else "note"
                expected, found = "one of a partition that was checked", ascii(each.said.origin)
                what = "checkpoint of something else"
                self._tally.add(severity, each.path, 0, expected=expected, found=found, what=what)
            else:
                self._check_origin(each, brokers, each.place)
        if catalogue is not None:
            for (topic_id, partition), claims in sorted(self._kept.items()):
                wanted = only.has(catalogue.names.get(topic_id), partition)
                if topic_id not in catalogue.deleted and wanted:
                    self._check_place(brokers, catalogue, topic_id, partition, claims)
        if self._unsigned:
            found = f"{self._unsigned} whose signatures were not checked: cryptography is not installed"
            path, what = self._directory, "checkpoints"
            self._tally.add("note", path, None, expected="signatures", found=found, what=what)
        return self._tally

    def _check_place(
        self,
        brokers: tuple[str, ...],
        catalogue: CatalogueContent,
        topic_id: str,
        partition: int,
        claims: Sequence[Claim],
    ) -> None:
        """Check that stored checkpoints belong to an existing partition that was checked."""
        name = catalogue.names.get(topic_id, topic_id)
        if (topic_id, partition) not in self._met:
            expected = f"the {claims[-1].said.size} leaves that are signed for"
            found = f"no partition {partition} of topic {name}"
            path, what = claims[-1].path, "checkpoint"
            self._tally.add("corruption", path, None, expected=expected, found=found, what=what)
        for each in claims:
            self._check_origin(each, brokers, f"{name}/{partition}")

    def _check_origin(self, claim: Claim, brokers: tuple[str, ...], place: str) -> None:
        if brokers and claim.said.origin not in [f"{broker}/{place}" for broker in brokers]:
            expected, found = f"{brokers[-1]}/{place}", ascii(claim.said.origin)
            what = "origin of a checkpoint"
            self._tally.add("corruption", claim.path, 0, expected=expected, found=found, what=what)

    # --- stored notes -----------------------------------------------------------------------------

    def _read_kept(self, key_path: str) -> None:
        if not self._files.exists(self._directory):
            return
        names = self._files.list(self._directory)
        key = self._read_key(key_path) if names else None
        for topic_id in names:
            path = join(self._directory, topic_id)
            for name in self._files.list(path) if self._files.is_directory(path) else []:
                match = _NAME.match(name)
                if match is not None:
                    self._read_claim(join(path, name), key, topic_id, int(match[1]), int(match[2]))
                elif not name.endswith(".tmp"):
                    # A temporary file is an unfinished note from a crash; it was never given out.
                    expected, found, what = "a checkpoint", "something else", "unexpected name"
                    self._tally.add("note", join(path, name), None, expected=expected, found=found, what=what)

    def _read_key(self, path: str) -> VerifierKey | None:
        data = read_bytes(self._tally, self._files, path)
        if data is None:
            return None
        try:
            return VerifierKey.parse(data.decode().strip())
        except (EvidenceRefused, UnicodeDecodeError) as error:
            expected = "a verifier key"
            self._tally.add("corruption", path, 0, expected=expected, found=error, what="key")
            return None

    def _read_claim(
        self, path: str, key: VerifierKey | None, topic_id: str, partition: int, size: int
    ) -> None:
        """Read a stored note, or report why it is unusable."""
        with self._tally.reading(path):
            data = read_file(self._files, path)
            self._tally.bytes += len(data)
            try:
                said = self._opened(data.decode(), key)
            except (EvidenceRefused, UnicodeDecodeError) as error:
                self._refuse(path, error)
                return
            if said.size != size:
                what = "size that a checkpoint signs for"
                self._tally.add("corruption", path, 0, expected=size, found=said.size, what=what)
                return
            self._kept.setdefault((topic_id, partition), []).append(Claim(path, said))

    def _opened(self, note: str, key: VerifierKey | None) -> Checkpoint:
        if key is not None:
            try:
                return open_checkpoint(note, key)
            except SigningUnavailable:
                self._unsigned += 1
        return unverified(note)

    def _refuse(self, path: str, error: Exception) -> None:
        self._tally.add("corruption", path, 0, expected="a signed checkpoint", found=error, what="checkpoint")
