"""The settings of a topic as terms for what is appended to it."""

from __future__ import annotations

from cordwood.config import LONG_MAX, TopicConfig
from cordwood.formats import (
    BatchTerms,
    Compression,
    CompressionChoice,
    Encoded,
    check_allowed,
    check_times,
    read_header,
)
from cordwood.kernels import INT32_MAX, INT64_MAX, INT64_MIN

#: At this level Kafka's lz4 is the fast compressor; at every other one it is the one for high ratios.
_LZ4_FAST = 9


UNCOMPRESSED = CompressionChoice(Compression.NONE)


def terms_of(config: TopicConfig, now_ms: int) -> BatchTerms:
    """Return what a topic with *config* asks of a batch that a client sends at *now_ms*.

    Timestamps are checked where they are the producer's: those that the broker sets are right.
    """
    earliest, latest = INT64_MIN, INT64_MAX
    if config.message_timestamp_type == "CreateTime":
        latest = min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX)
        if config.message_timestamp_before_max_ms != LONG_MAX:
            earliest = now_ms - config.message_timestamp_before_max_ms
    keyed = "compact" in config.cleanup_policy
    return BatchTerms(config.max_message_bytes, keyed, earliest, latest, codec_of(config))


def check_encoded(encoded: Encoded, config: TopicConfig, now_ms: int) -> None:
    """Refuse rows that were encoded at *now_ms* with a timestamp that a topic with *config* does not take.

    Raises:
        TimestampsRejected: With the index of each such row.
    """
    if config.message_timestamp_type != "CreateTime":
        return
    latest = now_ms + config.message_timestamp_after_max_ms
    if encoded.max_timestamp <= latest and config.message_timestamp_before_max_ms == LONG_MAX:
        # All of them, nearly always: this is the way of every append.
        return
    terms = terms_of(config, now_ms)
    if encoded.timestamps:
        check_times(encoded.timestamps, terms)
    else:
        data = memoryview(encoded.data)
        header = read_header(data, size_max=INT32_MAX)
        check_allowed(data, header, encoded.max_timestamp, terms._replace(keyed=False))


def codec_of(config: TopicConfig) -> CompressionChoice | None:
    """Return how batches of a topic with *config* are compressed, None for as they come."""
    match config.compression_type:
        case "producer":
            return None
        case "uncompressed":
            return UNCOMPRESSED
        case "gzip":
            level = config.compression_gzip_level
            return CompressionChoice(Compression.GZIP, None if level == -1 else level)
        case "snappy":
            return CompressionChoice(Compression.SNAPPY)
        case "lz4":
            level = config.compression_lz4_level
            return CompressionChoice(Compression.LZ4, None if level == _LZ4_FAST else level)
        case "zstd":
            return CompressionChoice(Compression.ZSTD, config.compression_zstd_level)
