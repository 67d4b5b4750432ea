"""Transactions as the clients of one org see them: under their own ids, with their own topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator

from cordwood import tenancy
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.broker.transactions import (
    TEXT_BYTES_MAX,
    ProducerIdentity,
    ProducerIdNeeded,
    Result,
    Transaction,
    TransactionEffect,
)
from cordwood.errors import ConcurrentTransactions, CordwoodError
from cordwood.records import TopicPartition
from cordwood.server.groups import settling
from cordwood.server.internal_topic import InternalTopic
from cordwood.server.transactions.serving import Transactions

Decide = Callable[[Callable[[object], None], int], list[TransactionEffect]]
"""Makes a request of the coordinator, with the token of its answer and the time."""


class TenantTransactions:
    """The transactions of one org, for handlers. On the loop only.

    Arguments are transactional ids and topic names of clients; `Transactions` uses internal ones with the org
    in them. Requests return an error instead of raising it.
    """

    def __init__(
        self,
        transactions: Transactions,
        org: int,
        loop: asyncio.AbstractEventLoop,
        new_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        self._transactions = transactions
        self._coordinator = transactions.coordinator
        self._org = org
        self._loop = loop
        self._new_producer_id = new_producer_id
        #: Appends markers without a decision of the coordinator; see `Transactions.mark`.
        self.mark = transactions.mark
        #: Calls something once committed records may be read; see `Transactions.when_recovered`.
        self.when_recovered = transactions.when_recovered
        #: Ends what a truncation left open; see `Transactions.end_orphans`.
        self.end_orphans = transactions.end_orphans
        #: Returns the time for transactions.
        self.now_ms = transactions.now_ms

    @property
    def loaded(self) -> bool:
        """Whether the stored transactions are loaded and finished."""
        return self._coordinator.loaded

    @property
    def is_recovering(self) -> bool:
        """Whether no committed record is read yet; see `Transactions.is_recovering`."""
        return self._transactions.is_recovering

    async def until_recovered(self) -> bool:
        """Wait until committed records may be read; return whether they may: else the server closes."""
        if self.is_recovering:
            recovered = self._loop.create_future()
            # A request that is cancelled does not wait any more.
            self.when_recovered(lambda: None if recovered.done() else recovered.set_result(None))
            await recovered
        return not self.is_recovering

    def _key(self, transactional_id: str) -> str:
        assert tenancy.is_client_id(transactional_id)
        return tenancy.qualify_id(transactional_id, self._org)

    def takes(self, transactional_id: str) -> bool:
        """Return whether *transactional_id* is a valid id."""
        if not transactional_id or not tenancy.is_client_id(transactional_id):
            return False
        return len(self._key(transactional_id).encode()) <= TEXT_BYTES_MAX

    # --- requests ---------------------------------------------------------------------------------

    async def init(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity | Exception:
        """Give a transactional id to a producer; see `Transaction.init`."""
        key = self._key(transactional_id)
        fresh_id: int | None = None
        while True:
            result = await self._ask(
                key,
                lambda token, now_ms, fresh=fresh_id: self._coordinator.init(  # type: ignore[misc]
                    key, timeout_ms, expected, fresh, token, now_ms
                ),
            )
            if not isinstance(result, ProducerIdNeeded):
                assert result is not None
                return result
            try:
                fresh_id = await self._new_producer_id()
            except CordwoodError as error:
                return error

    async def add_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> Exception | None:
        """Add partitions to the transaction of a producer; return the error or None."""
        inside = [(tenancy.qualify(topic, self._org), number) for topic, number in partitions]
        return await self._add(transactional_id, producer, inside)

    async def add_offsets(self, transactional_id: str, producer: ProducerIdentity) -> Exception | None:
        """Add the offsets of groups to the transaction of a producer; return the error or None."""
        return await self._add(transactional_id, producer, [(OFFSETS_TOPIC, InternalTopic.PARTITION)])

    def check_offsets(self, transactional_id: str, producer: ProducerIdentity) -> Exception | None:
        """Return why a producer must not commit offsets in its transaction, or None if it may.

        The append of the offsets asks for producer id and epoch only, and would take them under another id.
        """
        place = (OFFSETS_TOPIC, InternalTopic.PARTITION)
        return self._coordinator.check(self._key(transactional_id), producer, place)

    async def _add(
        self, transactional_id: str, producer: ProducerIdentity, inside: list[TopicPartition]
    ) -> Exception | None:
        key = self._key(transactional_id)
        result = await self._ask(
            key, lambda token, now_ms: self._coordinator.add_partitions(key, producer, inside, token, now_ms)
        )
        return result if isinstance(result, Exception) else None

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, committed: bool
    ) -> Exception | None:
        """Commit or abort the transaction of a producer; return the error or None."""
        key = self._key(transactional_id)
        result = await self._ask(
            key, lambda token, now_ms: self._coordinator.end(key, producer, committed, token, now_ms)
        )
        return result if isinstance(result, Exception) else None

    async def _ask(self, key: str, decide: Decide) -> Result:
        """Make a request; make it again if it came while the transaction before was being completed."""
        while True:
            told: asyncio.Future[Result] = self._loop.create_future()
            self._transactions.perform(decide(settling(told), self.now_ms()))
            result = await told
            if not isinstance(result, ConcurrentTransactions):
                return result
            if not await self._transactions.until_complete(key):
                return result

    # --- looking ----------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> Transaction | None:
        """Return a transactional id, or None. Its names are the internal ones, not for clients."""
        return self._coordinator.find(self._key(transactional_id))

    def __iter__(self) -> Iterator[tuple[str, Transaction]]:
        """Iterate over the transactional ids of the org."""
        for transaction in self._coordinator:
            # An invalid internal id belongs to no org.
            with contextlib.suppress(ValueError):
                name, org = tenancy.split_id(transaction.id)
                if org == self._org:
                    yield name, transaction

    def partitions_of(self, transaction: Transaction) -> dict[str, list[int]]:
        """Return the partitions of a transaction by the clients' names of their topics."""
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(transaction.current.partitions):
            found.setdefault(tenancy.split(topic).name, []).append(partition)
        return found
