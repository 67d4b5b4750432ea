"""Which transactional batches may be appended: those of a partition that is in the ongoing transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cordwood.errors import ProducerFenced, TransactionStateInvalid
from cordwood.formats import ProducerStamp
from cordwood.records import TopicPartition


class _Admitted(NamedTuple):
    epoch: int
    partitions: frozenset[TopicPartition]


class Admission:
    """The open transactions by producer id. One thread changes it; any thread may ask.

    A log asks under its append lock, and the coordinator closes a transaction here before its markers are
    appended. So no batch of a transaction can be appended after its marker.
    """

    def __init__(self) -> None:
        # An entry is replaced as a whole, so that a thread that asks sees all of a change or nothing of it.
        self._open: dict[int, _Admitted] = {}
        #: The latest epoch of each producer, to say that a batch comes from a producer that was fenced.
        self._epochs: dict[int, int] = {}

    def open(self, producer_id: int, epoch: int, partitions: frozenset[TopicPartition]) -> None:
        """Admit the batches of a transaction in *partitions*."""
        self._epochs[producer_id] = epoch
        self._open[producer_id] = _Admitted(epoch, partitions)

    def close(self, producer_id: int, epoch: int) -> None:
        """Admit no further batch of the producer until its next transaction."""
        self._open.pop(producer_id, None)
        self._epochs[producer_id] = epoch

    def forget(self, producer_id: int) -> None:
        """Forget a producer id that is no longer used."""
        self._open.pop(producer_id, None)
        self._epochs.pop(producer_id, None)

    def check_outside(self, stamp: ProducerStamp) -> None:
        """Refuse a batch outside of transactions from the producer of a transactional id.

        Its producer sends none. Somebody else could raise its epoch in a partition, and so fence it there.

        Raises:
            TransactionStateInvalid: If the producer id is that of a transactional id.
        """
        if stamp.producer_id in self._epochs:
            raise TransactionStateInvalid(
                f"producer {stamp.producer_id} has a transactional id and can append in its transactions only"
            )

    def guard(self, topic: str, partition: int) -> Callable[[ProducerStamp], None]:
        """Return a function for one partition that raises if a transactional batch must not be appended.

        It raises:
            ProducerFenced: If the batch has an older epoch than its producer id.
            TransactionStateInvalid: If the partition is not in an ongoing transaction of the producer.
        """
        place = (topic, partition)

        def admit(stamp: ProducerStamp) -> None:
            transaction = self._open.get(stamp.producer_id)
            if transaction is not None and transaction.epoch == stamp.epoch:
                if place in transaction.partitions:
                    return
            else:
                current = self._epochs.get(stamp.producer_id, stamp.epoch)
                if stamp.epoch < current:
                    raise ProducerFenced(stamp.producer_id, stamp.epoch, current)
            raise TransactionStateInvalid(
                f"producer {stamp.producer_id} has no ongoing transaction in this partition"
            )

        return admit
