"""Verify asks for files that can be read, nothing more: here they lie in a tar archive. Invariant I3."""

from __future__ import annotations

import errno
import tarfile
from pathlib import Path
from typing import Literal

import pytest
from corpus.make import CASES

from cordwood.disk.files import Names, ReadableFiles, os_error
from cordwood.disk.posix import PosixFiles
from cordwood.verify import VerifyReport, verify_directory

ARCHIVES = Path(__file__).parent.parent / "corpus" / "0.1.0"


class ArchivedFile:
    """A file in an archive."""

    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self._content = content

    def size(self) -> int:
        return len(self._content)

    def read_at(self, position: int, size: int) -> bytes:
        return self._content[position : position + size]

    def map(self) -> memoryview:
        return memoryview(self._content)

    def close(self) -> None:
        """Nothing is held."""


class ArchivedFiles:
    """The files of an archive. It has no method that could change one."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._directories = {member.name for member in archive if member.isdir()}
        self._contents = {
            member.name: extracted.read()
            for member in archive
            if member.isfile() and (extracted := archive.extractfile(member)) is not None
        }

    def flip(self, path: str, position: int) -> None:
        """Change one bit of the file at *path*."""
        content = bytearray(self._contents[path])
        content[position] ^= 1
        self._contents[path] = bytes(content)

    def open(self, path: str, mode: Literal["read"]) -> ArchivedFile:
        if path not in self._contents:
            raise os_error(errno.ENOENT, path)
        return ArchivedFile(path, self._contents[path])

    def exists(self, path: str) -> bool:
        return path in self._contents or path in self._directories

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def list(self, path: str) -> Names:
        if path not in self._directories:
            raise os_error(errno.ENOENT, path)
        prefix = f"{path}/"
        return sorted(
            name.removeprefix(prefix)
            for name in (*self._contents, *self._directories)
            if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
        )

    def irregular(self, path: str) -> Names:
        return []


def archived(case: str) -> ArchivedFiles:
    with tarfile.open(ARCHIVES / f"{case}.tar.xz") as archive:
        return ArchivedFiles(archive)


def findings(report: VerifyReport, root: str = "data") -> list[tuple[str, str, str]]:
    return sorted(
        (finding.severity, finding.path.removeprefix(root), finding.what) for finding in report.findings
    )


@pytest.mark.parametrize("case", [case for case in CASES if case != "backup"])
def test_an_archive_is_verified_in_place_with_the_findings_of_the_unpacked_directory(
    case: str, tmp_path: Path
) -> None:
    with tarfile.open(ARCHIVES / f"{case}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    files: ReadableFiles = archived(case)
    inside, outside = verify_directory(files, "data"), verify_directory(PosixFiles(), str(tmp_path / "data"))
    assert findings(inside) == findings(outside, str(tmp_path / "data"))
    assert (inside.topics, inside.segments, inside.frames, inside.records, inside.bytes) == (
        outside.topics,
        outside.segments,
        outside.frames,
        outside.records,
        outside.bytes,
    )
    assert inside.frames > 0


def test_a_flipped_bit_of_a_sealed_segment_in_an_archive_is_found() -> None:
    files = archived("formats")
    path = next(
        path
        for topic in files.list("data/topics")
        if files.is_directory(f"data/topics/{topic}/0/segments")
        for path in [f"data/topics/{topic}/0/segments/{0:020d}.log"]
        if files.exists(path)
    )
    files.flip(path, 70)
    report = verify_directory(files, "data")
    assert report.corrupt
    assert path in {finding.path for finding in report.findings}
