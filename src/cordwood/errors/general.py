"""Exceptions about settings, bytes, records, topics, evidence and storage; `transactions` has the others."""

from __future__ import annotations

from collections.abc import Mapping


class CordwoodError(Exception):
    """The base of all exceptions that the library raises on purpose."""


class ConfigError(CordwoodError):
    """An invalid setting. ``name`` is the key as the user wrote it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class UnknownSetting(ConfigError):
    """No setting has this name. ``suggestion`` is the nearest existing one, if there is one."""

    def __init__(self, name: str, suggestion: str | None = None, kind: str = "setting") -> None:
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        super().__init__(name, f"unknown {kind} {name}{hint}")
        self.suggestion = suggestion


class InvalidSetting(ConfigError):
    """The value does not fit the setting."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(name, f"{name}={value!r}: expected {expected}")
        self.value = value
        self.expected = expected


class FrameError(CordwoodError):
    """Bytes that are wrong.

    ``position`` is the byte distance from the start of the buffer or file that was read;
    ``path`` is filled in by the layer that knows the file.
    """

    def __init__(
        self, *, position: int, expected: object, found: object, what: str, path: str | None = None
    ) -> None:
        self.position = position
        self.expected = expected
        self.found = found
        self.what = what
        self.path = path
        super().__init__(position, expected, found, what, path)

    def __str__(self) -> str:
        """Return the place, the expected and the found value."""
        place = f"{self.path} at byte {self.position}" if self.path else f"byte {self.position}"
        return f"{place}: {self.what}: expected {self.expected}, found {self.found}"

    def at(self, path: str, start: int) -> FrameError:
        """Return the same finding with its place in the file: *start* is where the buffer began."""
        return type(self)(
            position=start + self.position,
            expected=self.expected,
            found=self.found,
            what=self.what,
            path=path,
        )


class TruncatedFrame(FrameError):
    """The bytes end before the frame does."""


class ChecksumMismatch(FrameError):
    """The stored checksum is not that of the bytes."""


class InvalidBatch(FrameError):
    """A batch that contradicts its own header or its format. Its checksum may be correct."""


class OnlyZeros(InvalidBatch):
    """Zeros in place of a frame: space that was reserved, or grown by a crash, and never written."""


class UnsupportedFrame(FrameError):
    """An unknown magic, attribute or compression."""


class FrameTooLarge(FrameError):
    """A batch, or its records once decompressed, would exceed the configured limit."""


class WrongStream(FrameError):
    """A record of another tenant or stream than the one that is read."""


class ProtocolError(CordwoodError):
    """A peer violated the Kafka protocol, or used an unsupported part of it."""


class MalformedMessage(ProtocolError):
    """Bytes that are not a message. ``position`` is the byte distance from the start of the frame."""

    def __init__(self, *, position: int, what: str, found: object) -> None:
        super().__init__(f"byte {position}: {what}: found {found}")
        self.position = position
        self.what = what
        self.found = found


class UnsupportedVersion(ProtocolError):
    """A request for an unsupported API or version. Its header could be read."""

    def __init__(self, *, api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> None:
        super().__init__(f"API {api_key} version {api_version}, asked for by client {client_id!r}")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id


class RecordRefused(CordwoodError):
    """A record that the format or the topic cannot store. Nothing was stored."""


class StreamTooLong(RecordRefused):
    """A stream exceeded ``max_bytes``. Nothing was stored."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the stream is longer than {max_bytes} bytes; nothing of it was stored")
        self.max_bytes = max_bytes


class RecordsRejected(RecordRefused):
    """Records of a batch that the topic does not accept. Nothing of the batch was stored.

    ``reasons`` has a sentence for each such record, by its index in the batch; no more than
    ``REASONS_MAX`` of them, however many there are (``count``).
    """

    #: A limit, because the answer to a batch with millions of wrong records must fit into a response.
    REASONS_MAX = 10_000
    #: The number of reasons in the message itself, as in Kafka's.
    SHOWN_MAX = 3

    def __init__(self, reasons: Mapping[int, str], count: int) -> None:
        super().__init__(self._summary(reasons, count))
        self.reasons = reasons
        self.count = count

    def _summary(self, reasons: Mapping[int, str], count: int) -> str:
        shown = "; ".join(
            f"record {index}: {reason}" for index, reason in list(reasons.items())[: self.SHOWN_MAX]
        )
        more = f"; and {count - self.SHOWN_MAX} more" if count > self.SHOWN_MAX else ""
        return f"the batch was refused because of {count} of its records: {shown}{more}"


class TimestampsRejected(RecordsRejected):
    """Records of a batch that the topic does not accept, some because of their timestamps."""


class OffsetOutOfRange(CordwoodError):
    """No such offset. ``start`` and ``end`` are the current bounds."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is not within {start} and {end}")
        self.offset = offset
        self.start = start
        self.end = end


class RecordsLost(CordwoodError):
    """Records that a query had to read are gone: [start, end), or all from ``start`` on if they are equal."""

    def __init__(self, topic: str, partition: int, start: int, end: int, reason: str) -> None:
        offsets = f"offsets {start} up to {end}" if start < end else f"offsets from {start} on"
        super().__init__(
            f"{offsets} of partition {partition} of topic {topic} are lost: {reason}; "
            "with failOnDataLoss=false the query continues without them"
        )
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.reason = reason


class JobFailed(CordwoodError):
    """A Spark job failed.

    ``corruption``: a task found once-acknowledged bytes wrong. ``unexplained``: no exception of Cordwood
    was found in what Spark raised, so the sentence is Spark's own.
    """

    def __init__(self, sentence: str, *, corruption: bool = False, unexplained: bool = False) -> None:
        super().__init__(sentence)
        self.corruption = corruption
        self.unexplained = unexplained


class SignedFor(CordwoodError):
    """A truncation that would remove records covered by a signed checkpoint. Nothing has changed.

    ``signed_up_to`` is the lowest offset that can be truncated at without asking for it explicitly.
    """

    def __init__(self, topic: str, partition: int, offset: int, signed_up_to: int) -> None:
        super().__init__(topic, partition, offset, signed_up_to)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.signed_up_to = signed_up_to

    def __str__(self) -> str:
        """Return what is signed, and how to truncate anyway."""
        return (
            f"partition {self.partition} of topic {self.topic} is signed by a checkpoint up to offset "
            f"{self.signed_up_to}; truncating it at {self.offset} contradicts that and must be forced"
        )


class EvidenceRefused(CordwoodError):
    """A note, a checkpoint or a proof that is invalid or does not match; says what differs."""


class EvidenceMissing(CordwoodError):
    """There is no such record, or no chain, leaf or checkpoint yet that proves it; says what to do."""


class SigningUnavailable(CordwoodError):
    """The signature library is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "signatures need the package cryptography, which is not installed; "
            "install it with pip install 'cordwood[signed]'"
        )


class UnexpectedOffset(CordwoodError):
    """An append required ``expected``, but the next offset is ``next_offset``. Nothing was stored."""

    def __init__(self, expected: int, next_offset: int) -> None:
        super().__init__(f"append expected at offset {expected}, but the next one is {next_offset}")
        self.expected = expected
        self.next_offset = next_offset


class OutOfSequence(CordwoodError):
    """A batch of an idempotent producer begins at ``sequence`` instead of ``expected``."""

    def __init__(self, producer_id: int, sequence: int, expected: int) -> None:
        super().__init__(f"producer {producer_id} sent sequence {sequence}, but {expected} comes next")
        self.producer_id = producer_id
        self.sequence = sequence
        self.expected = expected


class ProducerFenced(CordwoodError):
    """A batch or a call of a producer carries an epoch older than ``current``, the one in use."""

    def __init__(self, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id} has epoch {epoch}, but {current} is in use")
        self.producer_id = producer_id
        self.epoch = epoch
        self.current = current


class TopicMismatch(CordwoodError):
    """An existing topic differs from the caller's description."""

    def __init__(self, topic: str, what: str, stored: object, given: object) -> None:
        super().__init__(f"topic {topic} exists with {what} {stored}, not {given}")
        self.topic = topic
        self.what = what
        self.stored = stored
        self.given = given


class UnknownTopic(CordwoodError):
    """No such topic, or no such partition of it.

    ``missing`` is the name under which no topic was found; None if the topic was found, but has no such
    partition or was deleted or replaced during the call.
    """

    missing: str | None = None
    #: The existing topic that was probably meant, None if none is similar.
    suggestion: str | None = None

    @classmethod
    def named(cls, name: str, where: str = "", suggestion: str | None = None) -> UnknownTopic:
        """Return the error for a name that no topic has; *where* says in which log, if there are several."""
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        error = cls(f"there is no topic {name}{where and f' {where}'}{hint}")
        error.missing, error.suggestion = name, suggestion
        return error


class NotAllowed(CordwoodError):
    """A client that may not do *operation* on a topic; *address* is that of the broker that refuses."""

    def __init__(self, operation: str, topic: str, address: str | None = None) -> None:
        super().__init__(operation, topic, address)
        self.operation = operation
        self.topic = topic
        self.address = address

    def __str__(self) -> str:
        where = "" if self.address is None else f" at {self.address}"
        return f"this needs {self.operation} on topic {self.topic}{where}"


class TopicExists(CordwoodError):
    """A topic of that name exists already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is a topic {name} already")
        self.name = name


class QuotaExceeded(CordwoodError):
    """A storage quota of an org, or a limit of the directory, is reached. Nothing was stored."""


class LogClosed(CordwoodError):
    """A call after close, or in a process forked from the one that opened the log."""


class LeaderEpochFenced(CordwoodError):
    """A request names an older leader epoch than the partition has: its log may have been truncated since."""

    def __init__(self, given: int, current: int) -> None:
        super().__init__(f"leader epoch {given} is over, the current one is {current}")
        self.given = given
        self.current = current


class LeaderEpochUnknown(CordwoodError):
    """A request names a newer leader epoch than the partition has."""

    def __init__(self, given: int, current: int) -> None:
        super().__init__(f"there is no leader epoch {given} yet, the current one is {current}")
        self.given = given
        self.current = current


class WrongEventLoop(CordwoodError):
    """An awaited call from another event loop than the one that the log or broker was opened on."""


class ListenFailed(CordwoodError):
    """The server cannot listen at ``endpoint``."""

    def __init__(self, endpoint: object, reason: str) -> None:
        super().__init__(f"cannot listen on {endpoint}: {reason}")
        self.endpoint = endpoint
        self.reason = reason


class StorageError(CordwoodError):
    """The disk refused an operation, or its content is wrong."""


class DirectoryLocked(StorageError):
    """Another process writes this data directory. ``holder`` is what it wrote about itself.

    ``address`` is where it listens, if known: requests for the writer can be sent there.
    """

    LISTENING = "listening on"

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"{path} is locked by another writer: {holder or 'holder did not say who it is'}")
        self.path = path
        self.holder = holder
        self.address = self.address_in(holder)

    @classmethod
    def address_in(cls, holder: str) -> str | None:
        """Return the address in the text of a holder, None without one."""
        _, said, rest = holder.partition(f"{cls.LISTENING} ")
        return rest.split()[0] if said and rest.split() else None


class DirectoryRefused(StorageError):
    """Not a data directory, or one that must not be opened."""


class NotADataDirectory(DirectoryRefused):
    """Nothing at ``path`` was written by Cordwood."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        """Name the directory."""
        return f"{self.path} is not a data directory"


class MetadataDamaged(StorageError):
    """A metadata file is missing or damaged. It is never treated as empty."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CorruptRange(StorageError):
    """Acknowledged bytes that are wrong now. They are kept, and this range is refused.

    Reading continues at ``resume_offset``, the next offset that can be served.
    """

    def __init__(self, path: str, position: int, offset: int, resume_offset: int, reason: str) -> None:
        super().__init__(
            f"{path} at byte {position}: {reason}; offsets from {offset} are refused, "
            f"reading can go on at {resume_offset}"
        )
        self.path = path
        self.position = position
        self.offset = offset
        self.resume_offset = resume_offset
        self.reason = reason

    def resuming_at(self, offset: int) -> CorruptRange:
        """Return the same finding, with reading to continue at *offset*."""
        return CorruptRange(self.path, self.position, self.offset, offset, self.reason)


class DiskFull(StorageError):
    """There was no space for the append. Nothing was stored; the append may be retried."""


class ResourcesExhausted(StorageError):
    """There were no file handles left, or no memory. Nothing was done; the call may be retried."""


class LogFailed(StorageError):
    """A sync failed, or an append could not be undone: the content of the device is unknown.

    Every later call raises this too. Opening the directory again recovers what was acknowledged.
    """
