"""The data directory and the partition that a piece of evidence is about."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from cordwood.config import load_broker_config
from cordwood.disk import Files, files_of
from cordwood.errors import EvidenceRefused
from cordwood.integrity import Checkpoint, VerifierKey, origin_of
from cordwood.storage.meta import local_path, partition_directory
from cordwood.storage.readonly import ReadOnlyDirectory

Path: TypeAlias = str | os.PathLike[str]


class OpenedDirectory(NamedTuple):
    """A data directory open to read, and the files that it is on."""

    directory: ReadOnlyDirectory
    files: Files

    def partition_path(self, topic: str, partition: int) -> str:
        """Return the directory of a partition."""
        return partition_directory(self.directory.path, topic, partition)

    def place_of(self, checkpoint: Checkpoint) -> tuple[str, int]:
        """Return the topic and the partition that *checkpoint* is about.

        Raises:
            EvidenceRefused: If it is about none in this directory.
        """
        for topic, entry in self.directory.topics.items():
            for partition in range(entry.partitions):
                if origin_of(self.directory.identity.uuid, topic, partition) == checkpoint.origin:
                    return topic, partition
        raise EvidenceRefused(
            f"the checkpoint is of {checkpoint.origin}, which is not in {self.directory.path}"
        )


@contextlib.contextmanager
def opened(path: Path, files: Files | None = None) -> Iterator[OpenedDirectory]:
    """Open the data directory at *path* to read. Takes no lock, and works beside its writer.

    Raises:
        DirectoryRefused: If *path* is not a data directory.
        MetadataDamaged: If its metadata cannot be read.
    """
    config = load_broker_config()[0]
    place = os.path.abspath(local_path(os.fspath(path)))
    files = files_of(place, config) if files is None else files
    directory = ReadOnlyDirectory(files, place, config, mapped=config.io != "direct")
    with contextlib.closing(directory):
        yield OpenedDirectory(directory, files)


def parsed_key(key: VerifierKey | str) -> VerifierKey:
    """Return *key*, parsed if it is text.

    Raises:
        EvidenceRefused: If the text is not a verifier key.
    """
    return VerifierKey.parse(key.strip()) if isinstance(key, str) else key
