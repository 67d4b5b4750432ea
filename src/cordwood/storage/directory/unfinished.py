"""Topics that appear complete or not at all, as an import makes them.

A note in ``tmp/`` names them by id until they are complete. The next open removes the topics of a note that
is still there, before anything can be appended to them: no record that was acknowledged goes with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import msgspec

from cordwood.disk import Files, join, read_metadata, write_metadata
from cordwood.errors import MetadataDamaged
from cordwood.storage.meta import TopicEntry

_PREFIX, _SUFFIX = "import-", ".json"


class _Unfinished(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The id of each topic, by its name."""

    topics: dict[str, str]


_DECODER = msgspec.json.Decoder(_Unfinished)


def begin_unfinished(files: Files, data: str, note_id: str, topics: Mapping[str, str]) -> str:
    """Note that *topics*, ids by name, are about to be created; return the note's path. Durable on return."""
    away = join(data, "tmp")
    files.make_directories(away)
    files.sync_directory(data)
    path = join(away, f"{_PREFIX}{note_id}{_SUFFIX}")
    write_metadata(files, path, _Unfinished(dict(topics)))
    return path


def end_unfinished(files: Files, data: str, path: str) -> None:
    """Remove a note, because its topics are complete or gone. Durable on return."""
    files.unlink(path)
    files.sync_directory(join(data, "tmp"))


def remove_unfinished(
    files: Files, data: str, topics: Mapping[str, TopicEntry], delete: Callable[[str], None]
) -> None:
    """Remove the topics of notes that are still there, with *delete*, then the notes.

    A note that cannot be read stays, and so do its topics: nothing says which they are. A crash on the way
    leaves the note for the next open.
    """
    for path in _notes(files, data):
        with contextlib.suppress(MetadataDamaged):
            for name, topic_id in read_metadata(files, path, _DECODER).topics.items():
                if name in topics and topics[name].id == topic_id:
                    delete(name)
            end_unfinished(files, data, path)


def _notes(files: Files, data: str) -> Iterator[str]:
    away = join(data, "tmp")
    for name in files.list(away) if files.exists(away) else ():
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
            yield join(away, name)
