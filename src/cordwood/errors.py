"""Every exception the library raises on purpose.

::

    CordwoodError
    ├── ConfigError               a setting has a name or value we cannot take
    │   ├── UnknownSetting            no such name; says which one was probably meant
    │   └── InvalidSetting            the name exists, the value does not fit it
    ├── FrameError                bytes that are not what they should be, with position, expected, found
    │   ├── TruncatedFrame            the bytes end before the frame does
    │   ├── ChecksumMismatch          the stored checksum is not that of the bytes
    │   ├── InvalidBatch              a batch that contradicts its own header or its format
    │   ├── UnsupportedFrame          a magic, attribute or compression we do not know
    │   ├── FrameTooLarge             a batch or its decompressed records exceed the configured limit
    │   └── WrongStream               a record of another tenant or stream than the one that is read
    ├── ProtocolError             a peer sent what the Kafka protocol does not allow, or we do not speak
    │   ├── MalformedMessage          bytes that are no message: position, what is wrong, what was found
    │   └── UnsupportedVersion        an API or a version of it that we do not speak
    ├── RecordRefused             a record the format or the topic cannot hold; nothing was stored
    │   └── StreamTooLong             a stream went on past its limit; nothing was stored
    ├── OffsetOutOfRange          no such offset to read or cut at; carries both bounds
    ├── RecordsLost               records that a query was to read are gone; says which
    ├── JobFailed                 what a task of a Spark job raised, far from here
    ├── SignedFor                 a cut that would take back what a checkpoint signs for
    ├── EvidenceRefused           a note, a checkpoint or a proof that does not show what it is to show
    ├── SigningUnavailable        what signs and verifies is not installed
    ├── UnexpectedOffset          an append that was to land elsewhere
    ├── OutOfSequence             a batch of an idempotent producer that is not its next one
    ├── ProducerFenced            a batch of an idempotent producer whose id another one took over
    ├── TopicMismatch             an existing topic is not as the caller says
    ├── UnknownTopic              no such topic or partition
    ├── TopicExists               a topic that was to be created is there already
    ├── QuotaExceeded             an org would have more stored than it may; nothing was stored
    ├── LogClosed                 a call after close, or in a forked child
    ├── ListenFailed              an address to listen on is taken or not ours
    └── StorageError              the disk, or what is on it
        ├── DirectoryLocked           another process writes this data directory
        ├── DirectoryRefused          not a data directory, or one we must not open as it is
        ├── MetadataDamaged           a metadata file is missing or not as written; never taken for empty
        ├── CorruptRange              once-acknowledged bytes that are wrong; kept, and refused
        ├── DiskFull                  nothing was stored; works again once there is space
        └── LogFailed                 a sync failed: what is on the device is not known, nothing more is taken

A torn tail is not here: it is an expected result of a crash and is reported, not raised.
"""

from __future__ import annotations


class CordwoodError(Exception):
    """The base of everything the library raises on purpose."""


class ConfigError(CordwoodError):
    """A setting we cannot take. ``name`` is the key as the user wrote it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class UnknownSetting(ConfigError):
    """No setting has this name. ``suggestion`` is the nearest one that exists, if any is near."""

    def __init__(self, name: str, suggestion: str | None = None) -> None:
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        super().__init__(name, f"unknown setting {name}{hint}")
        self.suggestion = suggestion


class InvalidSetting(ConfigError):
    """The value does not fit the setting."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(name, f"{name}={value!r}: expected {expected}")
        self.value = value
        self.expected = expected


class FrameError(CordwoodError):
    """Bytes that are not what they should be.

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
        """Say where, what was expected and what was found."""
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
    """A batch that contradicts its own header or its format. Its checksum may well be right."""


class UnsupportedFrame(FrameError):
    """A magic, attribute or compression we do not know."""


class FrameTooLarge(FrameError):
    """A batch, or its records once decompressed, would exceed the configured limit."""


class WrongStream(FrameError):
    """A record of another tenant or stream than the one that is read."""


class ProtocolError(CordwoodError):
    """A peer sent what the Kafka protocol does not allow, or what we do not speak."""


class MalformedMessage(ProtocolError):
    """Bytes that are no message. ``position`` is the byte distance from the start of the frame."""

    def __init__(self, *, position: int, what: str, found: object) -> None:
        super().__init__(f"byte {position}: {what}: found {found}")
        self.position = position
        self.what = what
        self.found = found


class UnsupportedVersion(ProtocolError):
    """A request for an API, or a version of it, that we do not speak. Its header could be read."""

    def __init__(self, *, api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> None:
        super().__init__(f"API {api_key} version {api_version}, asked for by client {client_id!r}")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id


class RecordRefused(CordwoodError):
    """A record that the format or the topic cannot hold. Nothing was stored."""


class StreamTooLong(RecordRefused):
    """A stream went on past ``max_bytes``. Nothing was stored."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the stream is longer than {max_bytes} bytes; nothing of it was stored")
        self.max_bytes = max_bytes


class OffsetOutOfRange(CordwoodError):
    """No such offset. ``start`` and ``end`` are the bounds that hold now."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is not within {start} and {end}")
        self.offset = offset
        self.start = start
        self.end = end


class RecordsLost(CordwoodError):
    """Records that a query was to read are gone: [start, end), or all from ``start`` on if they are equal."""

    def __init__(self, topic: str, partition: int, start: int, end: int, reason: str) -> None:
        offsets = f"offsets {start} up to {end}" if start < end else f"offsets from {start} on"
        super().__init__(
            f"{offsets} of partition {partition} of topic {topic} are lost: {reason}; "
            "with failOnDataLoss=false the query goes on without them"
        )
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.reason = reason


class JobFailed(CordwoodError):
    """What a task of a Spark job raised. ``corruption``: it found once-acknowledged bytes wrong."""

    def __init__(self, sentence: str, *, corruption: bool = False) -> None:
        super().__init__(sentence)
        self.corruption = corruption


class SignedFor(CordwoodError):
    """A cut that would take back what a signed checkpoint vouches for. Nothing has changed.

    ``signed_up_to`` is the lowest offset that can be cut at unless that is asked for by name.
    """

    def __init__(self, topic: str, partition: int, offset: int, signed_up_to: int) -> None:
        super().__init__(topic, partition, offset, signed_up_to)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.signed_up_to = signed_up_to

    def __str__(self) -> str:
        """Say what is signed for, and how it is cut all the same."""
        return (
            f"a checkpoint signs for partition {self.partition} of topic {self.topic} up to offset "
            f"{self.signed_up_to}; whoever cuts it at {self.offset} takes that back, which must be forced"
        )


class EvidenceRefused(CordwoodError):
    """A note, a checkpoint or a proof that does not show what it is to show; says what differs."""


class SigningUnavailable(CordwoodError):
    """What signs and verifies is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "signatures need the package cryptography, which is not installed; "
            "install it with pip install 'cordwood[signed]'"
        )


class UnexpectedOffset(CordwoodError):
    """An append was to land at ``expected``, but the next offset is ``next_offset``. Nothing was stored."""

    def __init__(self, expected: int, next_offset: int) -> None:
        super().__init__(f"append expected at offset {expected}, but the next one is {next_offset}")
        self.expected = expected
        self.next_offset = next_offset


class OutOfSequence(CordwoodError):
    """A batch of an idempotent producer begins at ``sequence`` where ``expected`` comes next."""

    def __init__(self, producer_id: int, sequence: int, expected: int) -> None:
        super().__init__(f"producer {producer_id} sent sequence {sequence}, but {expected} comes next")
        self.producer_id = producer_id
        self.sequence = sequence
        self.expected = expected


class ProducerFenced(CordwoodError):
    """A batch of an idempotent producer carries an epoch older than ``current``."""

    def __init__(self, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id} has epoch {epoch}, but {current} is in use")
        self.producer_id = producer_id
        self.epoch = epoch
        self.current = current


class TopicMismatch(CordwoodError):
    """An existing topic differs from what the caller says of it."""

    def __init__(self, topic: str, what: str, stored: object, given: object) -> None:
        super().__init__(f"topic {topic} exists with {what} {stored}, not {given}")
        self.topic = topic
        self.what = what
        self.stored = stored
        self.given = given


class UnknownTopic(CordwoodError):
    """No such topic, or no such partition of it."""


class TopicExists(CordwoodError):
    """There is a topic of that name already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is a topic {name} already")
        self.name = name


class QuotaExceeded(CordwoodError):
    """An org would have more stored than it may. Nothing was stored; works again once there is space."""


class LogClosed(CordwoodError):
    """A call after close, or in a process forked from the one that opened the log."""


class ListenFailed(CordwoodError):
    """The server cannot listen at ``endpoint``."""

    def __init__(self, endpoint: object, reason: str) -> None:
        super().__init__(f"cannot listen on {endpoint}: {reason}")
        self.endpoint = endpoint
        self.reason = reason


class StorageError(CordwoodError):
    """The disk refused, or what is on it is not what it should be."""


class DirectoryLocked(StorageError):
    """Another process writes this data directory. ``holder`` is what it wrote about itself.

    ``address`` is where it listens, if it said that: whatever needs the writer can go there.
    """

    LISTENING = "listening on"

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"{path} is locked by another writer: {holder or 'holder did not say who it is'}")
        self.path = path
        self.holder = holder
        self.address = self.address_in(holder)

    @classmethod
    def address_in(cls, holder: str) -> str | None:
        """Return the address that a holder's words have, None without one."""
        _, said, rest = holder.partition(f"{cls.LISTENING} ")
        return rest.split()[0] if said and rest.split() else None


class DirectoryRefused(StorageError):
    """Not a data directory, or one that must not be opened as it is."""


class MetadataDamaged(StorageError):
    """A metadata file is missing or not what was written. It is never taken for empty."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CorruptRange(StorageError):
    """Once-acknowledged bytes that are wrong. They are kept, and this range is refused.

    Reading goes on at ``resume_offset``, the next offset that can be served.
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
        """Return the same finding, with reading to go on at *offset*."""
        return CorruptRange(self.path, self.position, self.offset, offset, self.reason)


class DiskFull(StorageError):
    """There was no space for the append. Nothing of it was kept; it may be tried again."""


class LogFailed(StorageError):
    """A sync failed, or an append could not be undone: what the device holds is not known.

    Every later call raises this too. Opening the directory again recovers what was acknowledged.
    """
