"""Exceptions about transactions."""

from __future__ import annotations

from cordwood.errors.general import CordwoodError, RecordRefused


class TransactionsUnsupported(RecordRefused):
    """A transactional record for a topic whose format cannot store transactions. Nothing was stored."""

    def __init__(self, format_name: str) -> None:
        super().__init__(
            f"the format {format_name} cannot store records of transactions, only batch, the usual one, can"
        )
        self.format_name = format_name


class TransactionError(CordwoodError):
    """A request that does not fit the state of its transaction. Nothing was done."""


class TransactionStateInvalid(TransactionError):
    """A call, or a batch, that is not allowed in the current state of the transaction."""


class ConcurrentTransactions(TransactionError):
    """The transaction before is being ended. The call may be retried after a moment."""

    def __init__(self, transactional_id: str) -> None:
        super().__init__(f"the transaction before of {transactional_id} is being ended; try again")
        self.transactional_id = transactional_id


class ProducerMappingInvalid(TransactionError):
    """The transactional id has another producer id than the call, or is unknown."""

    def __init__(self, transactional_id: str, producer_id: int) -> None:
        super().__init__(
            f"producer {producer_id} is not the producer of the transactional id {transactional_id}"
        )
        self.transactional_id = transactional_id
        self.producer_id = producer_id


class TransactionTimeoutInvalid(TransactionError):
    """A transaction timeout that is not positive, or longer than ``transaction.max.timeout.ms``."""

    def __init__(self, timeout_ms: int, longest_ms: int) -> None:
        super().__init__(f"a transaction timeout of {timeout_ms} ms is not within 1 and {longest_ms} ms")
        self.timeout_ms = timeout_ms
        self.longest_ms = longest_ms


class TransactionalIdUnknown(TransactionError):
    """No such transactional id: it was never used, or it was unused for so long that it expired."""

    def __init__(self, transactional_id: str) -> None:
        super().__init__(f"there is no transactional id {transactional_id}")
        self.transactional_id = transactional_id


class UnstableOffset(TransactionError):
    """A committed offset is part of a transaction that has not ended. The call may be retried."""
