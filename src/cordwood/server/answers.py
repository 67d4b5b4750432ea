"""What clients are told of our errors: one table from exceptions to Kafka's codes."""

from __future__ import annotations

from cordwood.errors import (
    ChecksumMismatch,
    ConfigError,
    CorruptRange,
    FrameError,
    FrameTooLarge,
    LeaderEpochFenced,
    LeaderEpochUnknown,
    LogClosed,
    OffsetOutOfRange,
    OutOfSequence,
    ProducerFenced,
    QuotaExceeded,
    RecordRefused,
    StorageError,
    TimestampsRejected,
    TopicExists,
    TruncatedFrame,
    UnknownTopic,
    UnsupportedFrame,
)
from cordwood.protocol import ErrorCode

# The first that fits counts, so the particular come before the general.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (UnknownTopic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
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
    (RecordRefused, ErrorCode.INVALID_RECORD),
    (OutOfSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (ProducerFenced, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ConfigError, ErrorCode.INVALID_CONFIG),
    (QuotaExceeded, ErrorCode.POLICY_VIOLATION),
    # Consumers report this one with the offset; KAFKA_STORAGE_ERROR they would retry without a word.
    (CorruptRange, ErrorCode.CORRUPT_MESSAGE),
    (StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    # Closed under the request: deleted, or the broker is going down. Clients ask again for the leader.
    (LogClosed, ErrorCode.NOT_LEADER_OR_FOLLOWER),
)


#: Sentences quote what clients sent, and fit the field they are sent back in however long that was.
SENTENCE_MAX = 1000


def code_of(error: Exception) -> ErrorCode:
    """Return the code that tells a client of *error*."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def message_of(error: Exception) -> str | None:
    """Return the sentence that goes with the code, None for what is not the client's to know."""
    return None if code_of(error) is ErrorCode.UNKNOWN_SERVER_ERROR else sentence_of(error)


def sentence_of(error: Exception) -> str:
    """Return what *error* says, cut if it is long."""
    return shortened(str(error))


def shortened(sentence: str) -> str:
    """Return *sentence*, cut if it is long."""
    return sentence if len(sentence) <= SENTENCE_MAX else f"{sentence[:SENTENCE_MAX]}…"
