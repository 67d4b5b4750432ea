"""Base of formats with one record per frame: the engine's contract over a few format-specific methods.

A format encodes, checks, decodes and streams one record. This module has the loops around that: it finds
frames in order, checks them against the sidecar and the previous frame if the format has these, and converts
Kafka's batches to and from frames.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from cordwood.errors import (
    ChecksumMismatch,
    FrameError,
    InvalidBatch,
    RecordRefused,
    RecordsRejected,
    TransactionsUnsupported,
    TruncatedFrame,
)
from cordwood.formats import batch
from cordwood.formats.batch import Marker
from cordwood.formats.format import (
    NOTHING_BESIDE,
    Beside,
    Encoded,
    FrameSlot,
    Holds,
    ReceivedFrame,
    Row,
    StreamedFrame,
)
from cordwood.formats.native import BatchFormat
from cordwood.formats.per_record.record_table import Content, FoundFrame, RecordTable
from cordwood.formats.receiving import BatchTerms, CompressionChoice
from cordwood.formats.sidecar import Sidecar, SidecarEntry
from cordwood.kernels import INT32_MAX, Buffer
from cordwood.records import Header, Record, split_timestamp_us

__all__ = ["Content", "FoundFrame", "RecordPerFrame", "RecordTable"]

_BATCH = BatchFormat()


class RecordPerFrame(ABC):
    """A format whose frame is one record; see `format.Format`."""

    name: str
    header_size: int
    holds: Holds
    record_per_frame = True
    chained = False
    sidecar: Sidecar | None = None
    store_bytes_max: int | None = None

    # --- implemented by each format -----------------------------------------------------------------

    @abstractmethod
    def frame_size(self, header: Buffer) -> int | None:
        """Return the size of the frame with these first ``header_size`` bytes, None if they are invalid."""

    @abstractmethod
    def encode_frame(
        self, content: Content, *, offset: int, timestamp_us: int, before: bytes, size_max: int
    ) -> Buffer:
        """Encode one record, *timestamp_us* in microseconds. It has only parts that ``holds`` allows.

        Raises:
            RecordRefused: If its offset or time cannot be stored, or its header would be all zeros.
            FrameTooLarge: If the frame would exceed *size_max* bytes.
        """

    @abstractmethod
    def find_frame(
        self, buffer: Buffer, position: int, *, size: int | None, size_max: int, checked: bool
    ) -> FoundFrame:
        """Read the frame at *position*, all of whose bytes must be there, and check it by itself.

        *size* is from the sidecar, None without one. With *checked* its checksum was compared earlier.

        Raises:
            TruncatedFrame: If the buffer ends inside the frame.
            FrameError: The subclass says what else is wrong, with the position of the field.
        """

    @abstractmethod
    def decode_frame(self, buffer: Buffer, position: int, size: int) -> Content:
        """Decode the frame of *size* bytes at *position*, which `find_frame` returned before.

        Raises:
            FrameError: If it contradicts itself although its checksum is correct.
        """

    @abstractmethod
    def stream_frame(
        self,
        key: bytes | None,
        headers: tuple[Header, ...],
        value_size: int,
        *,
        offset: int,
        timestamp_us: int,
        before: bytes,
        size_max: int,
    ) -> StreamedFrame:
        """Lay out a frame around a value that is not in memory; raises as `encode_frame` does."""

    def left_by(self, frame: Buffer) -> bytes:
        """Return the state that a complete frame passes to the next one."""
        return b""

    def for_partition(self, partition: int, tenant: int | None = 0) -> RecordPerFrame:
        """Return the format for one partition: itself, unless frames contain its number or tenant."""
        return self

    # --- finding -----------------------------------------------------------------------------------

    def scan(
        self,
        buffer: Buffer,
        start: int = 0,
        *,
        next_offset: int,
        dense: bool,
        epochs: Sequence[tuple[int, int]] | None,
        size_max: int,
        checked_before: int = 0,
        beside: Beside = NOTHING_BESIDE,
    ) -> RecordTable:
        """Find the complete, valid frames from *start* on. They contain no leader epochs."""
        table = RecordTable(self, buffer, start, epochs, beside.before)
        entries = None if self.sidecar is None else self.sidecar.unpack(beside.sidecar)
        while table.end < len(buffer):
            try:
                entry = None
                if entries is not None:
                    entry, next_offset = _next_entry(entries, next_offset, dense=dense)
                found = self._find(buffer, table.end, entry, beside.position, size_max, checked_before)
                offset = next_offset if found.offset is None else found.offset
                exact = dense or entry is not None
                if offset < next_offset or (exact and offset != next_offset):
                    expected = f"{next_offset}" if exact else f"at least {next_offset}"
                    raise InvalidBatch(position=table.end, expected=expected, found=offset, what="offset")
                if self.chained and table.end + found.size > checked_before:
                    table.check_follows(found)
            except FrameError as error:
                table.stop(error)
                break
            table.add(found.size, offset, found.timestamp)
            next_offset = offset + 1
        return table

    def _find(
        self,
        buffer: Buffer,
        position: int,
        entry: SidecarEntry | None,
        start: int,
        size_max: int,
        checked_before: int,
    ) -> FoundFrame:
        """Return the frame at *position*, checked by itself and against its entry in the sidecar."""
        if entry is None:
            # The checked part ends at the end of a frame.
            checked = position < checked_before
            return self.find_frame(buffer, position, size=None, size_max=size_max, checked=checked)
        if entry.position != start + position:
            raise InvalidBatch(
                position=position, expected=start + position, found=entry.position, what="sidecar position"
            )
        end = position + entry.size
        if end > len(buffer):
            raise TruncatedFrame(
                position=position,
                expected=f"{entry.size} bytes",
                found=f"{len(buffer) - position} bytes",
                what="record",
            )
        checked = end <= checked_before
        found = self.find_frame(buffer, position, size=entry.size, size_max=size_max, checked=checked)
        if found.size != entry.size:
            raise InvalidBatch(position=position, expected=entry.size, found=found.size, what="record length")
        if not checked:
            assert self.sidecar is not None
            actual = self.sidecar.checksum(buffer, position, end)
            if actual != entry.checksum:
                raise ChecksumMismatch(
                    position=position,
                    expected=f"{entry.checksum:#010x}",
                    found=f"{actual:#010x}",
                    what="checksum of the record",
                )
        return found

    def candidates(self, buffer: Buffer) -> Iterator[int]:
        """Yield the positions whose header has a size that fits into the buffer; none with a sidecar."""
        if self.sidecar is not None:
            return
        data = bytes(buffer)
        for start in range(len(data) - self.header_size + 1):
            size = self.frame_size(data[start : start + self.header_size])
            if size is not None and size <= len(data) - start:
                yield start

    # --- encoding ----------------------------------------------------------------------------------

    def encode(
        self,
        rows: Iterable[Row],
        slot: FrameSlot,
        now_ms: int,
        codec: CompressionChoice | None = None,
    ) -> Encoded:
        """Encode rows as one frame each. Frames are never compressed; *codec* is ignored."""
        untimed: Sequence[bool] = ()
        if slot.now_us is not None:
            rows = list(rows)
            untimed = [len(row) < 4 or row[3] is None for row in rows]
        # The kernel of the native format refuses invalid rows, with the same messages for every format.
        checked = batch.encode_records(rows, now_ms, size_max=INT32_MAX)
        records = batch.decode_records(checked, batch.read_header(checked, size_max=INT32_MAX))
        return self._encode(records, slot, untimed)

    def _encode(self, records: Sequence[Record], slot: FrameSlot, untimed: Sequence[bool] = ()) -> Encoded:
        """Encode records as one frame each; *untimed* says which got their time from the log."""
        data, sizes, timestamps, checksums = bytearray(), [], [], []
        base_offset, before = slot.base_offset, slot.before
        for number, record in enumerate(records):
            content = Content(record.key, record.value, record.headers)
            timestamp = record.timestamp if slot.append_timestamp is None else slot.append_timestamp
            timestamp_us = timestamp * 1000
            if slot.now_us is not None:
                given_us, content = self._split_time(record, number)
                untimed_here = bool(untimed) and untimed[number] and given_us == timestamp_us
                assigned = slot.append_timestamp is not None or untimed_here
                timestamp_us = slot.now_us if assigned else given_us
            self.check_holds(content, number)
            frame = self.encode_frame(
                content,
                offset=base_offset + number,
                timestamp_us=timestamp_us,
                before=before,
                size_max=slot.size_max,
            )
            data += frame
            sizes.append(len(frame))
            timestamps.append(timestamp)
            if self.sidecar is not None:
                checksums.append(self.sidecar.checksum(frame, 0, len(frame)))
            if self.chained:
                before = self.left_by(frame)
        next_offset = base_offset + len(sizes)
        return Encoded(data, next_offset, max(timestamps), sizes, timestamps, checksums, before)

    def _split_time(self, record: Record, number: int) -> tuple[int, Content]:
        """Return the time of a record in microseconds, and its content without the header of that.

        Raises:
            RecordRefused: If the header is not a time within the millisecond of the record.
        """
        try:
            given_us, headers = split_timestamp_us(record.timestamp, record.headers)
        except ValueError as error:
            raise RecordRefused(f"record {number} has {error}") from None
        return given_us, Content(record.key, record.value, headers)

    def check_holds(self, content: Content, number: int) -> None:
        """Refuse the record *number* if the format cannot store a part of it; names the part.

        Raises:
            RecordRefused: If it has such a part.
        """
        unheld = self._unheld(content)
        if unheld is not None:
            raise RecordRefused(f"record {number} has {unheld}")

    def _unheld(self, content: Content) -> str | None:
        """Return the part of a record that the format cannot store, and why; None without one."""
        held = self.holds
        for holds, has, what in (
            (held.keys, content.key is not None, "a key"),
            (held.headers, bool(content.headers), "headers"),
            (held.null_values, content.value is None, "no value"),
        ):
            if has and not holds:
                return f"{what}, which the format {self.name} cannot hold"
        return None

    def _unheld_of(self, record: Record, *, microseconds: bool) -> str | None:
        """Return the part of a record that the format cannot store, in a topic that may have microseconds."""
        headers = record.headers
        if microseconds and headers:
            try:
                _, headers = split_timestamp_us(record.timestamp, headers)
            except ValueError as error:
                return str(error)
        return self._unheld(Content(record.key, record.value, headers))

    def receive(self, data: memoryview, terms: BatchTerms) -> ReceivedFrame:
        """Check the one batch in *data*, decode it, and refuse records that cannot be stored."""
        received = _BATCH.receive(data, terms._replace(codec=None))
        if received.stamp is not None and received.stamp.transactional:
            raise TransactionsUnsupported(self.name)
        header = batch.read_header(data, size_max=INT32_MAX)
        records = batch.decode_records(data, header)
        microseconds = terms.microseconds and self.holds.microseconds
        unheld = {
            number: f"it has {what}"
            for number, record in enumerate(records)
            if (what := self._unheld_of(record, microseconds=microseconds)) is not None
        }
        if unheld:
            raise RecordsRejected(dict(islice(unheld.items(), RecordsRejected.REASONS_MAX)), len(unheld))
        return received._replace(records=records)

    def encode_marker(self, marker: Marker, slot: FrameSlot, now_ms: int) -> Encoded:
        """Refuse: frames of one record cannot be undone."""
        raise TransactionsUnsupported(self.name)

    def times(self, frame: ReceivedFrame) -> Sequence[int]:
        """Return the timestamps of the records of a received batch."""
        return [record.timestamp for record in frame.records]

    def with_times(self, frame: ReceivedFrame, timestamps: Sequence[int]) -> ReceivedFrame:
        """Return a received batch whose records have other timestamps."""
        records = [
            record if record.timestamp == timestamp else msgspec.structs.replace(record, timestamp=timestamp)
            for record, timestamp in zip(frame.records, timestamps, strict=True)
        ]
        return frame._replace(records=records, max_timestamp=max(timestamps))

    def place(self, frame: ReceivedFrame, slot: FrameSlot) -> Encoded:
        """Encode the records of a received batch as one frame each."""
        return self._encode(frame.records, slot)

    def stream(
        self,
        key: bytes | None,
        headers: Iterable[Header],
        value_size: int,
        slot: FrameSlot,
        timestamp: int,
    ) -> StreamedFrame:
        """Lay out a frame around a value that is not in memory."""
        checked = batch.encode_records([(key, b"", tuple(headers))], timestamp, size_max=INT32_MAX)
        (record,) = batch.decode_records(checked, batch.read_header(checked, size_max=INT32_MAX))
        timestamp_us = (timestamp if slot.append_timestamp is None else slot.append_timestamp) * 1000
        named = record.headers
        if slot.now_us is not None:
            given_us, (_, _, named) = self._split_time(record, 0)
            timestamp_us = given_us if slot.append_timestamp is None else slot.now_us
        # A format may store an empty value in another way than one with bytes, of which none is here yet.
        self.check_holds(Content(record.key, b"\0" if value_size else b"", named), 0)
        return self.stream_frame(
            record.key,
            named,
            value_size,
            offset=slot.base_offset,
            timestamp_us=timestamp_us,
            before=slot.before,
            size_max=slot.size_max,
        )


def _next_entry(
    entries: Iterator[SidecarEntry], next_offset: int, *, dense: bool
) -> tuple[SidecarEntry, int]:
    """Return the entry of the next record that was not removed, and its offset.

    Raises:
        InvalidBatch: If there is none, or a removed one where none may be.
    """
    for entry in entries:
        if entry.size:
            return entry, next_offset
        if dense:
            break
        next_offset += 1
    raise InvalidBatch(
        position=0, expected=f"one for offset {next_offset}", found="none", what="sidecar entry"
    )
