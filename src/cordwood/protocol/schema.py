"""Declaration of messages: typed classes whose fields define their wire format.

::

    @message
    class DeletableTopicResult:
        name: str | None = string("0+", nullable="6+")
        topic_id: bytes = uuid("6+")
        error_code: int = int16("0+")

Versions have Kafka's notation: ``"6+"``, ``"0-5"``, ``"3"``. The type checker uses the attribute types,
:mod:`cordwood.protocol.codec` the wire types, and the order of the declarations is the order on the wire. A
message is a mutable ``msgspec.Struct``; a field that is not given, or that a version does not have, has
Kafka's default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, dataclass_transform, overload

import msgspec

from cordwood.protocol.wire import NULL_ID, WireBytes

T = TypeVar("T")
M = TypeVar("M")

_LAST = 0x7FFF


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions from *first* to *last*, both included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse versions such as ``3+``, ``0-5`` or ``7``."""
        if text.endswith("+"):
            return cls(int(text[:-1]), _LAST)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __str__(self) -> str:
        return f"{self.first}+" if self.last == _LAST else f"{self.first}-{self.last}"


#: The empty range of versions.
NEVER = Versions(0, -1)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its wire type and its versions.

    ``nullable`` are the versions in which it may be None. ``tag`` is its number if it is a tagged field, in
    all its versions or in none. If ``default`` is a list or a class, each message gets a new instance.
    """

    name: str
    type: WireType
    versions: Versions
    nullable: Versions
    tag: int | None
    default: Any


@dataclass(frozen=True, slots=True)
class _Default:
    """Sentinel for a default that is not given, because None is a valid default."""


_DEFAULT = _Default()


def _declare(
    wire_type: WireType,
    versions: str,
    nullable: str | None,
    tag: int | None,
    default: Any,
) -> Any:
    """Return the field of a declaration; its name is set when the class is created."""
    parsed = Versions.parse(nullable) if nullable else NEVER
    return Field("", wire_type, Versions.parse(versions), parsed, tag, default)


@dataclass(frozen=True, slots=True, eq=False)
class Fixed(Generic[T]):
    """A type of fixed size; calling it declares a field. ``code`` is its :mod:`struct` format."""

    code: str
    size: int
    default: T

    def __call__(self, versions: str, *, default: T | None = None, tag: int | None = None) -> T:
        """Declare a field of *versions*."""
        declared: T = _declare(self, versions, None, tag, self.default if default is None else default)
        return declared


@dataclass(frozen=True, slots=True, eq=False)
class Sized(Generic[T]):
    """A type with a length prefix, which may be null; calling it declares a field.

    ``code`` is the :mod:`struct` format of the length in versions without compact lengths.
    """

    code: str
    size: int
    default: T

    @overload
    def __call__(self, versions: str, *, default: T | _Default = ..., tag: int | None = ...) -> T: ...

    @overload
    def __call__(
        self, versions: str, *, nullable: str, default: T | _Default | None = ..., tag: int | None = ...
    ) -> T | None: ...

    def __call__(
        self,
        versions: str,
        *,
        nullable: str | None = None,
        default: T | _Default | None = _DEFAULT,
        tag: int | None = None,
    ) -> T | None:
        """Declare a field of *versions* that may be None in the *nullable* ones."""
        value = self.default if isinstance(default, _Default) else default
        declared: T | None = _declare(self, versions, nullable, tag, value)
        return declared


@dataclass(frozen=True, slots=True)
class Struct:
    """A message within another."""

    message: type[Any]


@dataclass(frozen=True, slots=True)
class Array:
    """A count followed by that many elements of the type ``element``."""

    element: Fixed[Any] | Sized[Any] | Struct


#: The wire type of a field.
WireType = Fixed[Any] | Sized[Any] | Array | Struct


int8: Fixed[int] = Fixed("b", 1, 0)
int16: Fixed[int] = Fixed("h", 2, 0)
uint16: Fixed[int] = Fixed("H", 2, 0)
int32: Fixed[int] = Fixed("i", 4, 0)
int64: Fixed[int] = Fixed("q", 8, 0)
float64: Fixed[float] = Fixed("d", 8, 0.0)
#: Any byte except 0 is true.
boolean: Fixed[bool] = Fixed("?", 1, False)
uuid: Fixed[bytes] = Fixed("16s", 16, NULL_ID)
string: Sized[str] = Sized("h", 2, "")
#: Bytes that the protocol does not interpret; they are copied out of the frame.
opaque: Sized[bytes] = Sized("i", 4, b"")
#: Record batches in a request: a slice of its frame, writable if the frame is. While the slice lives, the
#: frame cannot be resized and stays in memory as a whole.
batches: Sized[memoryview] = Sized("i", 4, memoryview(b""))
#: Record batches in a response, in any number of buffers, which are passed on without a copy. No buffers are
#: written as null; null is read as no buffers.
buffers: Sized[Sequence[WireBytes]] = Sized("i", 4, ())


@overload
def array(of: Fixed[T] | Sized[T] | type[T], versions: str, *, tag: int | None = ...) -> list[T]: ...


@overload
def array(
    of: Fixed[T] | Sized[T] | type[T], versions: str, *, nullable: str, default: list[T] | None = ...
) -> list[T] | None: ...


def array(
    of: Fixed[T] | Sized[T] | type[T],
    versions: str,
    *,
    nullable: str | None = None,
    default: list[T] | _Default | None = _DEFAULT,
    tag: int | None = None,
) -> list[T] | None:
    """Declare a list of scalars or messages; its default is empty unless *default* is None."""
    element = Struct(of) if isinstance(of, type) else of
    value = [] if isinstance(default, _Default) else default
    declared: list[T] | None = _declare(Array(element), versions, nullable, tag, value)
    return declared


@overload
def struct(of: type[M], versions: str, *, tag: int | None = ...) -> M: ...


@overload
def struct(of: type[M], versions: str, *, nullable: str) -> M | None: ...


def struct(of: type[M], versions: str, *, nullable: str | None = None, tag: int | None = None) -> M | None:
    """Declare a field with one message; its default is None if it is nullable, else a new message."""
    declared: M | None = _declare(Struct(of), versions, nullable, tag, None if nullable else of)
    return declared


#: The fields of each message, in the order of the wire.
_declared: dict[type[Any], tuple[Field, ...]] = {}


@dataclass_transform()
def message(cls: type[M]) -> type[M]:
    """Create a message class from a class whose attributes are all declared by functions of this module."""
    fields = [(name, vars(cls).get(name)) for name in cls.__annotations__]
    for name, each in fields:
        assert isinstance(each, Field), f"{cls.__name__}.{name} has no wire type"
    made: Any = msgspec.defstruct(
        cls.__name__,
        [(name, Any, _default_of(each.default)) for name, each in fields if each is not None],
        namespace={"__doc__": cls.__doc__},
        module=cls.__module__,
        # A message has no reference cycles, so the garbage collector need not track it.
        gc=False,
    )
    _declared[made] = tuple(dataclasses.replace(each, name=name) for name, each in fields if each is not None)
    return made  # type: ignore[no-any-return]


def _default_of(default: Any) -> Any:
    return msgspec.field(default_factory=default) if isinstance(default, type) else default


def fields_of(cls: type[Any], version: int) -> list[Field]:
    """Return the fields of *version* of a message, in the order of the wire."""
    return [each for each in _declared[cls] if version in each.versions]


def every_field(cls: type[Any]) -> tuple[Field, ...]:
    """Return the fields of all versions of a message, in the order of its constructor."""
    return _declared[cls]
