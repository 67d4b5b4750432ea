"""The answers and actions of transactions."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.broker.transactions.state_topic import StateRow
from cordwood.records import TopicPartition

Token = object
"""Identifies a request that is answered later. The coordinator only returns it in its answer."""


class ProducerIdentity(NamedTuple):
    """The producer id and epoch of a transactional producer."""

    producer_id: int
    epoch: int


class ProducerIdNeeded(NamedTuple):
    """The answer to a producer that needs a new producer id: call `init` again with one.

    New ids are reserved on disk, which the coordinator does not do itself.
    """


Result = ProducerIdentity | ProducerIdNeeded | Exception | None
"""The answer to a request: an identity to a producer that begins, an error, or None for success."""


class TransactionReply(NamedTuple):
    """Answer the request behind *token*."""

    token: Token
    result: Result


class StoreTransaction(NamedTuple):
    """Append *row* to the internal topic.

    If it *waits*, sync the topic and then call `stored`. All rows of a transactional id must be
    appended in the order of these actions.
    """

    transactional_id: str
    row: StateRow
    waits: bool = True


class WriteMarkers(NamedTuple):
    """Append a marker to each of *partitions* and sync it, then call `markers_written`.

    Partitions that no longer exist are left out. If another partition fails, it is tried again later: until
    all have their marker, the transaction is not complete.
    """

    transactional_id: str
    identity: ProducerIdentity
    committed: bool
    partitions: tuple[TopicPartition, ...]


TransactionEffect = TransactionReply | StoreTransaction | WriteMarkers
