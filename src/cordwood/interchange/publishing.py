"""Create the topics of an import, completely or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cordwood.disk import Files
from cordwood.errors import CordwoodError
from cordwood.host import process
from cordwood.storage.directory import DataDirectory, begin_unfinished, end_unfinished


class ImportedTopic(NamedTuple):
    """The number of partitions and the settings of a topic to create."""

    partitions: int
    config: Mapping[str, str]


@contextlib.contextmanager
def created(files: Files, directory: DataDirectory, topics: Mapping[str, ImportedTopic]) -> Iterator[None]:
    """Create *topics*, which the block fills. If the block fails, they are removed.

    If the process is killed on the way, the next open of the directory removes them.
    """
    ids = {name: process.new_id() for name in topics}
    note = begin_unfinished(files, directory.path, process.new_id(), ids)
    try:
        for name, topic in topics.items():
            directory.topics.create(name, ids[name], topic.partitions, dict(topic.config))
        yield
    except BaseException:
        with contextlib.suppress(CordwoodError, OSError):
            for name, topic_id in ids.items():
                entry = directory.topics.get(name)
                if entry is not None and entry.id == topic_id:
                    directory.topics.delete(name)
            end_unfinished(files, directory.path, note)
        raise
    end_unfinished(files, directory.path, note)
