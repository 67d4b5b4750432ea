"""The journal of a query: ``meta/sink/<query>.json``, its highest published batch and an open intent.

docs/formats/directory.md has the fields. Its owner writes it; readers beside the owner read it, to know which
offsets an open intent promises.
"""

from __future__ import annotations

import msgspec

from cordwood.disk import Files, join, read_metadata
from cordwood.errors import DirectoryRefused, MetadataDamaged
from cordwood.storage.meta import check_stored_number, check_stored_place
from cordwood.storage.sink.staging import Share, is_share_name, query_key

NOTHING_PUBLISHED = -1
JOURNAL_VERSION = 1


class PlannedAppend(msgspec.Struct, frozen=True):
    """The offset at which a partition gets the records of a batch."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int


class Intent(msgspec.Struct, frozen=True):
    """A batch that counts as published once this is synced."""

    batch: int
    shares: tuple[Share, ...]
    places: tuple[PlannedAppend, ...]


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a query: its highest published batch, and the batch being published.

    ``number`` counts the publications of the directory and is that of the newest one of this query; 0 where a
    version wrote it that did not count. One with neither a batch nor an intent is there for its number alone.
    """

    format: int = JOURNAL_VERSION
    query: str
    number: int = 0
    published: int = NOTHING_PUBLISHED
    intent: Intent | None = None

    @property
    def remembers_nothing(self) -> bool:
        """Whether the query is not known any more."""
        return self.published == NOTHING_PUBLISHED and self.intent is None


_DECODER = msgspec.json.Decoder(Journal)


def journal_path(data: str, query: str) -> str:
    """Return the path of the journal of a query."""
    return join(data, "meta", "sink", f"{query_key(query)}.json")


def read_journal(files: Files, data: str, query: str) -> Journal:
    """Return the journal of a query; an empty one if it has no batches.

    Raises:
        MetadataDamaged: If it cannot be read or belongs to another query.
    """
    path = journal_path(data, query)
    return decode_journal(files, path) if files.exists(path) else Journal(query=query)


def journal_paths(files: Files, data: str) -> list[str]:
    """Return the paths of the journals of all queries."""
    directory = join(data, "meta", "sink")
    names = files.list(directory) if files.exists(directory) else []
    return [join(directory, name) for name in names if name.endswith(".json")]


def decode_journal(files: Files, path: str) -> Journal:
    """Return the journal read from *path*.

    Raises:
        MetadataDamaged: If it cannot be read.
        DirectoryRefused: If a newer version of Cordwood wrote it.
    """
    journal = read_metadata(files, path, _DECODER)
    if journal.format > JOURNAL_VERSION:
        raise DirectoryRefused(
            f"{path} has format {journal.format}; this version reads up to {JOURNAL_VERSION}"
        )
    _check_names(path, journal)
    return journal


def _check_names(path: str, journal: Journal) -> None:
    """Refuse a journal of another query, or an intent with names that are unsafe in a path."""
    if not path.endswith(f"/{query_key(journal.query)}.json"):
        raise MetadataDamaged(path, f"is the journal of query {journal.query!a}, which has another name")
    intent = journal.intent
    if intent is None:
        return
    check_stored_number(path, "batch", intent.batch)
    for share in intent.shares:
        if not is_share_name(share.name):
            raise MetadataDamaged(path, f"{share.name[:300]!a} is not the name of a share")
        for section in share.sections:
            check_stored_place(path, *section.target)
    for place in intent.places:
        check_stored_place(path, place.topic, place.topic_id, place.partition)


def promised(files: Files, data: str, query: str) -> int:
    """Return the highest batch of *query* that is published or has an intent."""
    journal = read_journal(files, data, query)
    return journal.published if journal.intent is None else max(journal.published, journal.intent.batch)
