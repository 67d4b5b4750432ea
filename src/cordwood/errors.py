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
    │   └── FrameTooLarge             a batch or its decompressed records exceed the configured limit
    ├── RecordRefused             a record the format or the topic cannot hold; nothing was stored
    └── StorageError              the disk, or what is on it
        └── DirectoryLocked           another process writes this data directory

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


class RecordRefused(CordwoodError):
    """A record that the format or the topic cannot hold. Nothing was stored."""


class StorageError(CordwoodError):
    """The disk refused, or what is on it is not what it should be."""


class DirectoryLocked(StorageError):
    """Another process writes this data directory. ``holder`` is what it wrote about itself."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"{path} is locked by another writer: {holder or 'holder did not say who it is'}")
        self.path = path
        self.holder = holder
