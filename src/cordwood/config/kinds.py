"""How the text of a setting becomes a value, and what some of those values are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

T = TypeVar("T")
SyncMode = Literal["each", "every", "ms", "never"]
#: What Kafka calls the type of a value, where it describes settings.
ValueType = Literal["boolean", "string", "int", "long", "double", "list"]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SettingKind(Generic[T]):
    """How text becomes a value. ``parse`` raises ValueError for all but what ``expected`` describes."""

    parse: Callable[[str], T]
    expected: str
    type: ValueType = "string"


def _whole_number(text: str) -> int:
    # int() alone would also take 1_000 and the digits of every script, which nobody means in a file.
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"not a whole number: {text!r}")
    return int(text)


def integer(minimum: int, maximum: int = INT_MAX, *, unit: str = "", scale: int = 1) -> SettingKind[int]:
    """Take a whole number within both bounds; the value is that number times *scale*."""

    def parse(text: str) -> int:
        number = _whole_number(text)
        if not minimum <= number <= maximum:
            raise ValueError(f"{number} is not from {minimum} to {maximum}")
        return number * scale

    type_: ValueType = "int" if maximum <= INT_MAX else "long"
    return SettingKind(parse, f"a whole number{unit and ' of '}{unit} from {minimum} to {maximum}", type_)


def one_of(*choices: str, unsaid: str | None = None) -> SettingKind[Any]:
    """Take one of *choices*; *unsaid* is taken too, and not told to who gives another."""

    def parse(text: str) -> str:
        if text not in choices and text != unsaid:
            raise ValueError(f"{text!r} is not one of {choices}")
        return text

    return SettingKind(parse, " or ".join(choices))


def some_of(*choices: str) -> SettingKind[str]:
    """Take one or more of *choices* with commas between; the value has each once, in alphabetical order."""

    def parse(text: str) -> str:
        named = {part.strip() for part in text.split(",")}
        if not named <= set(choices):
            raise ValueError(f"{text!r} is not made of {choices}")
        return ",".join(sorted(named))

    return SettingKind(parse, " or ".join([*choices, ",".join(sorted(choices))]), "list")


def parse_boolean(text: str) -> bool:
    """Return the truth that *text* says; raises as `SettingKind` has it."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"neither true nor false: {text!r}")
    return text.lower() == "true"


def parse_path(text: str) -> str:
    """Return the path that *text* is; raises as `SettingKind` has it."""
    if not text or "\0" in text:
        raise ValueError(f"not a path: {text!r}")
    return text


def parse_only_path(text: str) -> str:
    """Return the one path that *text* is, though it could be several; raises as `SettingKind` has it."""
    # Kafka takes a list here. Taking its commas as part of one name would put the data where nobody looks.
    if "," in text:
        raise ValueError(f"more than one path: {text!r}")
    return parse_path(text)


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """When appended records are synced to the device.

    ``amount`` counts records for ``every`` and milliseconds for ``ms``; it is 0 for ``each`` and ``never``.
    """

    mode: SyncMode
    amount: int = 0

    def __post_init__(self) -> None:
        smallest, largest = (1, INT_MAX) if self.mode in ("every", "ms") else (0, 0)
        if self.mode not in get_args(SyncMode) or not smallest <= self.amount <= largest:
            raise ValueError(f"no sync policy is {self.mode!r} with {self.amount}")

    @classmethod
    def parse(cls, text: str) -> SyncPolicy:
        """Return the policy that *text* names: ``each``, ``every:N``, ``ms:T`` or ``never``.

        Raises:
            ValueError: If it names none, or N or T is not from 1 to 2147483647.
        """
        match text.partition(":"):
            case ("each" | "never") as mode, "", "":
                return cls(mode)
            case ("every" | "ms") as mode, ":", amount:
                return cls(mode, _whole_number(amount))
        raise ValueError(f"no sync policy is {text!r}")

    def __str__(self) -> str:
        return f"{self.mode}:{self.amount}" if self.amount else self.mode

    @property
    def durable(self) -> bool:
        """Whether only synced records are acknowledged. If not, a power cut can take acknowledged ones."""
        return self.mode == "each"


class Endpoint(NamedTuple):
    """A host and a port to listen on or to be reached at; an empty host means every interface."""

    host: str
    port: int
    name: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return the endpoint of ``HOST:PORT`` or ``[IPV6]:PORT``, behind a ``NAME://`` or not.

        Raises:
            ValueError: If *text* is none of these, or the name is one of Kafka's for encrypted or
                authenticated connections: whoever asks for that must not get less.
        """
        name, _, address = text.rpartition("://")
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([a-zA-Z0-9._-]*)):([0-9]+)", address)
        if match is None or int(match[3]) > 65535 or not re.fullmatch(r"[A-Za-z0-9_-]*", name):
            raise ValueError(f"neither HOST:PORT nor NAME://HOST:PORT: {text!r}")
        if name.upper() in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise ValueError(f"not offered: {name}")
        return cls(match[1] or match[2] or "", int(match[3]), name or "PLAINTEXT")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """One or more endpoints, as ``listeners`` has them."""

    each: tuple[Endpoint, ...]

    @classmethod
    def parse(cls, text: str) -> Endpoints:
        """Return the endpoints of a list with commas; an empty text has none.

        The one that Kafka has for its controllers is left out: there are none here.
        """
        endpoints = [Endpoint.parse(part.strip()) for part in text.split(",")] if text else []
        return cls(tuple(endpoint for endpoint in endpoints if endpoint.name != "CONTROLLER"))

    def __str__(self) -> str:
        return ",".join(f"{endpoint.name}://{endpoint}" for endpoint in self.each)


def limit(unit: str, scale: int = 1) -> SettingKind[int]:
    """Take a whole number, times *scale*, or -1 for no limit."""

    def parse(text: str) -> int:
        number = _whole_number(text)
        if not -1 <= number <= LONG_MAX // scale:
            raise ValueError(f"{number} is neither -1 nor a number of {unit}")
        return number if number == -1 else number * scale

    return SettingKind(parse, f"a whole number of {unit}, or -1 for no limit", "long")


def parse_ratio(text: str) -> float:
    """Return the number from 0 to 1 that *text* is; raises as `SettingKind` has it."""
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError(f"{number} is not from 0 to 1")
    return number


def parse_throttled_replicas(text: str) -> str:
    """Return the list of replicas that *text* is, as Kafka writes it; raises as `SettingKind` has it."""
    parts = [part.strip() for part in text.split(",")]
    if text != "*" and not all(re.fullmatch(r"([0-9]+:[0-9]+)?", part) for part in parts):
        raise ValueError(f"neither * nor a list of partition:broker: {text!r}")
    return text


def parse_gzip_level(text: str) -> int:
    """Return the level of gzip that *text* is; raises as `SettingKind` has it."""
    level = _whole_number(text)
    if level != -1 and not 1 <= level <= 9:
        raise ValueError(f"{level} is neither -1 nor from 1 to 9")
    return level


def text_of(value: object) -> str:
    """Return *value* as a properties file spells it; parsing that gives the value back."""
    return str(value).lower() if isinstance(value, bool) else str(value)
