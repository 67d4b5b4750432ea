"""Mapping from exceptions to Kafka's error codes and messages."""

from __future__ import annotations

from cordwood.errors import (
    ChecksumMismatch,
    ConcurrentTransactions,
    ConfigError,
    CorruptRange,
    FrameError,
    FrameTooLarge,
    LeaderEpochFenced,
    LeaderEpochUnknown,
    LeaseExpired,
    LogClosed,
    NotAllowed,
    OffsetOutOfRange,
    OutOfSequence,
    ProducerFenced,
    ProducerMappingInvalid,
    QuotaExceeded,
    RecordRefused,
    SignedFor,
    StorageError,
    TimestampsRejected,
    TopicExists,
    TransactionalIdUnknown,
    TransactionStateInvalid,
    TransactionsUnsupported,
    TransactionTimeoutInvalid,
    TruncatedFrame,
    UnknownTopic,
    UnstableOffset,
    UnsupportedFrame,
)
from cordwood.protocol import ErrorCode

# The first matching class is used, so subclasses come before their bases.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (UnknownTopic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (NotAllowed, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    (TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (LeaderEpochFenced, ErrorCode.FENCED_LEADER_EPOCH),
    (LeaderEpochUnknown, ErrorCode.UNKNOWN_LEADER_EPOCH),
    (FrameTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (ChecksumMismatch, ErrorCode.CORRUPT_MESSAGE),
    (TruncatedFrame, ErrorCode.CORRUPT_MESSAGE),
    (UnsupportedFrame, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (FrameError, ErrorCode.INVALID_RECORD),
    (TimestampsRejected, ErrorCode.INVALID_TIMESTAMP),
    (TransactionsUnsupported, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (RecordRefused, ErrorCode.INVALID_RECORD),
    (OutOfSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    # As Produce answers it; the requests of transactions have PRODUCER_FENCED in their newer versions.
    (ProducerFenced, ErrorCode.INVALID_PRODUCER_EPOCH),
    (TransactionStateInvalid, ErrorCode.INVALID_TXN_STATE),
    (ConcurrentTransactions, ErrorCode.CONCURRENT_TRANSACTIONS),
    (ProducerMappingInvalid, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (TransactionTimeoutInvalid, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    (TransactionalIdUnknown, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
    (UnstableOffset, ErrorCode.UNSTABLE_OFFSET_COMMIT),
    (ConfigError, ErrorCode.INVALID_CONFIG),
    (QuotaExceeded, ErrorCode.POLICY_VIOLATION),
    (SignedFor, ErrorCode.POLICY_VIOLATION),
    # Consumers report this code with the offset; they would silently retry KAFKA_STORAGE_ERROR.
    (CorruptRange, ErrorCode.CORRUPT_MESSAGE),
    (StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    # Clients retry; the records of an idempotent producer are then found to be there.
    (LeaseExpired, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
    # The log was closed during the request: it is deleted, or the broker shuts down. Clients retry.
    (LogClosed, ErrorCode.NOT_LEADER_OR_FOLLOWER),
)


#: The longest error message, in characters. Messages quote the client's input, which may be too long for the
#: field of the response.
SENTENCE_MAX = 1000


def code_of(error: Exception) -> ErrorCode:
    """Return Kafka's error code for *error*."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def message_of(error: Exception) -> str | None:
    """Return the error message for the client, or None if clients must not see the details."""
    return None if code_of(error) is ErrorCode.UNKNOWN_SERVER_ERROR else sentence_of(error)


def sentence_of(error: Exception) -> str:
    """Return the text of *error*, shortened if it is long."""
    return shortened(str(error))


def shortened(sentence: str) -> str:
    """Return *sentence*, shortened to ``SENTENCE_MAX`` characters."""
    return sentence if len(sentence) <= SENTENCE_MAX else f"{sentence[:SENTENCE_MAX]}…"
