"""Fetch, tuned by hand: responses out, with their batches passed through uncopied."""

from __future__ import annotations

import struct

from cordwood.protocol.fetch import BY_ID_FROM, FLEXIBLE_FROM, FetchResponse
from cordwood.protocol.wire import WRITE_ERRORS, Buffer, Encode, varint

_COUNT = struct.Struct(">i").pack
_LENGTH = struct.Struct(">h").pack
_RESPONSE_4 = struct.Struct(">ii").pack
_RESPONSE_7 = struct.Struct(">ihii").pack
_RESPONSE_12 = struct.Struct(">ihi").pack
_ANSWER_4 = struct.Struct(">ihqq").pack
_ANSWER_5 = struct.Struct(">ihqqq").pack
_ABORTED = struct.Struct(">qq").pack


def response_encoder(version: int) -> Encode:
    """Return the function that writes responses of *version*.

    The records of each partition are among the buffers it returns, the very objects it was given; what
    lies between is packed into ``bytes``. It raises ValueError for a value that its field cannot hold.
    Tagged fields are left out.
    """
    write = _write_legacy if version < FLEXIBLE_FROM else _write_flexible

    def encode(response: FetchResponse) -> list[Buffer]:
        out: list[Buffer] = []
        try:
            if last := write(response, version, out):
                out.append(b"".join(last))
        except WRITE_ERRORS as error:
            raise ValueError(f"FetchResponse v{version} cannot be written: {error}") from None
        return out

    return encode


def _write_legacy(response: FetchResponse, version: int, out: list[Buffer]) -> list[bytes]:
    """Append all but the bytes after the last records to *out*, and return those."""
    topics = response.topics
    small = [
        _RESPONSE_4(response.throttle_time_ms, len(topics))
        if version < 7
        else _RESPONSE_7(response.throttle_time_ms, response.error_code, response.session_id, len(topics))
    ]
    for topic in topics:
        name = topic.name.encode()
        small += (_LENGTH(len(name)), name, _COUNT(len(topic.partitions)))
        for p in topic.partitions:
            if version < 5:
                small.append(_ANSWER_4(p.index, p.error_code, p.high_watermark, p.last_stable_offset))
            else:
                small.append(
                    _ANSWER_5(
                        p.index, p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset
                    )
                )
            if p.aborted_transactions is None:
                small.append(b"\xff\xff\xff\xff")
            else:
                small.append(_COUNT(len(p.aborted_transactions)))
                small += [_ABORTED(each.producer_id, each.first_offset) for each in p.aborted_transactions]
            if version >= 11:
                small.append(_COUNT(p.preferred_read_replica))
            small.append(_COUNT(sum(map(len, p.records))))
            if p.records:
                out.append(b"".join(small))
                out += p.records
                small = []
    return small


def _write_flexible(response: FetchResponse, version: int, out: list[Buffer]) -> list[bytes]:
    """Append all but the bytes after the last records to *out*, and return those."""
    topics = response.topics
    by_id = version >= BY_ID_FROM
    small = [
        _RESPONSE_12(response.throttle_time_ms, response.error_code, response.session_id),
        varint(len(topics) + 1),
    ]
    for topic in topics:
        if by_id:
            assert len(topic.topic_id) == 16
            small.append(topic.topic_id)
        else:
            name = topic.name.encode()
            small += (varint(len(name) + 1), name)
        small.append(varint(len(topic.partitions) + 1))
        for p in topic.partitions:
            small.append(
                _ANSWER_5(p.index, p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset)
            )
            if p.aborted_transactions is None:
                small.append(b"\0")
            else:
                small.append(varint(len(p.aborted_transactions) + 1))
                for each in p.aborted_transactions:
                    small += (_ABORTED(each.producer_id, each.first_offset), b"\0")
            small += (_COUNT(p.preferred_read_replica), varint(sum(map(len, p.records)) + 1))
            if p.records:
                out.append(b"".join(small))
                out += p.records
                small = []
            small.append(b"\0")
        small.append(b"\0")
    small.append(b"\0")
    return small
