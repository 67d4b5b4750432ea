"""The settings of a topic as terms for what is appended to it.

With ``cordwood.timestamp.order``, records are compared with the largest timestamp of the active segment when
they are appended, the *floor*, and with the records before them in the same append.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, islice

from cordwood.config import LONG_MAX, TimestampOrder, TopicConfig
from cordwood.errors import TimestampsRejected
from cordwood.formats import (
    BatchTerms,
    Compression,
    CompressionChoice,
    Encoded,
    Format,
    ReceivedFrame,
    Row,
    check_allowed,
    check_times,
    read_header,
)
from cordwood.kernels import INT32_MAX, INT64_MAX, INT64_MIN

#: At this level Kafka's lz4 is the fast compressor; at every other one it is the one for high ratios.
_LZ4_FAST = 9
_TIMESTAMP_AT = 3
#: The lengths of rows without a timestamp.
_UNTIMED = (2, 3)


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
    microseconds = config.timestamp_precision == "us"
    return BatchTerms(config.max_message_bytes, keyed, earliest, latest, codec_of(config), microseconds)


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


# --- timestamps in order -----------------------------------------------------------------------------


def given_times(rows: Sequence[Row], now_ms: int) -> list[int]:
    """Return the timestamp that each row was given, *now_ms* if none that can be compared."""
    return [now_ms if (given := _timestamp_of(row)) is None else given for row in rows]


def timed(rows: Iterable[Row], now_ms: int) -> list[Row]:
    """Return *rows*, each with a timestamp; one that has none gets *now_ms*, or the largest one before it.

    Rows of another form stay as they are: encoding refuses them.
    """
    found, newest = [], now_ms
    for row in rows:
        given = _timestamp_of(row)
        if given is not None:
            newest = max(newest, given)
            found.append(row)
        elif len(row) in _UNTIMED or (len(row) > max(_UNTIMED) and row[_TIMESTAMP_AT] is None):
            found.append((*row[:_TIMESTAMP_AT], *((),) * (_TIMESTAMP_AT - len(row)), newest))
        else:
            found.append(row)
    return found


def ordered_rows(rows: Sequence[Row], floor: int, order: TimestampOrder) -> Sequence[Row]:
    """Return *rows*, which `timed` returned, in the order of their timestamps: as they are, or lifted.

    Raises:
        TimestampsRejected: If *order* is ``refuse`` and a timestamp runs backwards.
    """
    given = [time for row in rows if (time := _timestamp_of(row)) is not None]
    if len(given) < len(rows):
        return rows
    times = ordered_times(given, floor, order)
    if times is None:
        return rows
    return [(*row[:_TIMESTAMP_AT], time) for row, time in zip(rows, times, strict=True)]


def _timestamp_of(row: Row) -> int | None:
    """Return the timestamp of ``(key, value, headers, timestamp)``, None if it has none."""
    given = row[_TIMESTAMP_AT] if len(row) > _TIMESTAMP_AT else None
    return given if isinstance(given, int) else None


def ordered_frame(format_: Format, frame: ReceivedFrame, floor: int, order: TimestampOrder) -> ReceivedFrame:
    """Return a received batch in the order of its timestamps: as it is, or lifted.

    Raises:
        TimestampsRejected: If *order* is ``refuse`` and a timestamp runs backwards.
    """
    times = ordered_times(format_.times(frame), floor, order)
    return frame if times is None else format_.with_times(frame, times)


def ordered_times(times: Sequence[int], floor: int, order: TimestampOrder) -> list[int] | None:
    """Return *times* lifted so that none is before *floor* or one before it; None if all are as they are.

    Raises:
        TimestampsRejected: If *order* is ``refuse`` and a timestamp runs backwards.
    """
    lifted = list(accumulate(times, max, initial=floor))[1:]
    if order == "any" or all(map(int.__eq__, lifted, times)):
        return None
    if order == "lift":
        return lifted
    wrong = {
        index: f"timestamp {time} is before {least}, the last one of the segment"
        for index, (time, least) in enumerate(zip(times, lifted, strict=True))
        if time < least
    }
    raise TimestampsRejected(dict(islice(wrong.items(), TimestampsRejected.REASONS_MAX)), len(wrong))
