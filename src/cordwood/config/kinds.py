"""Kinds of settings: parsers from text to value, and the types of some of those values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

T = TypeVar("T")
SyncMode = Literal["each", "every", "ms", "never"]
#: Kafka's names for the types of settings.
ValueType = Literal["boolean", "string", "int", "long", "double", "list"]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
# Topics with these names are reserved: clients cannot write them.
# Only the scheme: what is wrong with the rest is said without repeating it, because it may have a secret.
_BUCKET = re.compile(r"(s3|gs|az)://\S+")
_AUDIT_TOPIC = re.compile(r"__audit[a-zA-Z0-9._-]{0,200}")


@dataclass(frozen=True, slots=True)
class SettingKind(Generic[T]):
    """A parser from text to value. ``parse`` raises ValueError for text that does not fit ``expected``."""

    parse: Callable[[str], T]
    expected: str
    type: ValueType = "string"


def _whole_number(text: str) -> int:
    # int() alone would also accept 1_000 and the digits of every script.
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"not a whole number: {text!r}")
    return int(text)


def integer(minimum: int, maximum: int = INT_MAX, *, unit: str = "", scale: int = 1) -> SettingKind[int]:
    """Return a kind that accepts a whole number within both bounds and multiplies it by *scale*."""

    def parse(text: str) -> int:
        number = _whole_number(text)
        if not minimum <= number <= maximum:
            raise ValueError(f"{number} is not from {minimum} to {maximum}")
        return number * scale

    type_: ValueType = "int" if maximum <= INT_MAX else "long"
    return SettingKind(parse, f"a whole number{unit and ' of '}{unit} from {minimum} to {maximum}", type_)


#: The number of copies of a record, where Kafka takes larger ones.
ONE_COPY = SettingKind(integer(1, 1).parse, "1: one broker holds the only copy of each record", "int")


def one_of(*choices: str, unsaid: str | None = None) -> SettingKind[Any]:
    """Return a kind that accepts one of *choices*, or *unsaid*, which error messages do not mention."""

    def parse(text: str) -> str:
        if text not in choices and text != unsaid:
            raise ValueError(f"{text!r} is not one of {choices}")
        return text

    return SettingKind(parse, " or ".join(choices))


def some_of(*choices: str) -> SettingKind[str]:
    """Return a kind that accepts a comma-separated list of *choices*; the value is sorted and unique."""

    def parse(text: str) -> str:
        named = {part.strip() for part in text.split(",")}
        if not named <= set(choices):
            raise ValueError(f"{text!r} is not made of {choices}")
        return ",".join(sorted(named))

    return SettingKind(parse, " or ".join([*choices, ",".join(sorted(choices))]), "list")


def parse_boolean(text: str) -> bool:
    """Parse a boolean. Raises ValueError if *text* is neither true nor false."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"neither true nor false: {text!r}")
    return text.lower() == "true"


def parse_bucket(text: str) -> str:
    """Parse the URL of a bucket, or nothing. Raises ValueError if it is of a kind that cannot hold a log."""
    if text and not _BUCKET.fullmatch(text):
        raise ValueError(f"not the URL of a bucket: {text!r}")
    return text


def parse_audit_topic(text: str) -> str:
    """Parse the name of an audit topic, or nothing. Raises ValueError if clients could write such a topic."""
    if text and not _AUDIT_TOPIC.fullmatch(text):
        raise ValueError(f"not the name of an audit topic: {text!r}")
    return text


def parse_path(text: str) -> str:
    """Parse a path. Raises ValueError if *text* is empty or has a null character."""
    if not text or "\0" in text:
        raise ValueError(f"not a path: {text!r}")
    return text


def parse_only_path(text: str) -> str:
    """Parse a path that must not be a list. Raises ValueError if *text* is invalid or has a comma."""
    # Kafka accepts a list here. Taking commas as part of one name would put the data in an unexpected place.
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
            raise ValueError(f"not a sync policy: {self.mode!r} with {self.amount}")

    @classmethod
    def parse(cls, text: str) -> SyncPolicy:
        """Return the policy that *text* names: ``each``, ``every:N``, ``ms:T`` or ``never``.

        Raises:
            ValueError: If *text* is not one of these, or N or T is not from 1 to 2147483647.
        """
        match text.partition(":"):
            case ("each" | "never") as mode, "", "":
                return cls(mode)
            case ("every" | "ms") as mode, ":", amount:
                return cls(mode, _whole_number(amount))
        raise ValueError(f"not a sync policy: {text!r}")

    def __str__(self) -> str:
        return f"{self.mode}:{self.amount}" if self.amount else self.mode

    @property
    def durable(self) -> bool:
        """Whether only synced records are acknowledged. If not, a power cut can lose acknowledged records."""
        return self.mode == "each"


def limit(unit: str, scale: int = 1) -> SettingKind[int]:
    """Return a kind that accepts a whole number, multiplied by *scale*, or -1 for no limit."""

    def parse(text: str) -> int:
        number = _whole_number(text)
        if not -1 <= number <= LONG_MAX // scale:
            raise ValueError(f"{number} is neither -1 nor a number of {unit}")
        return number if number == -1 else number * scale

    return SettingKind(parse, f"a whole number of {unit}, or -1 for no limit", "long")


def parse_ratio(text: str) -> float:
    """Parse a number from 0 to 1. Raises ValueError for any other text."""
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError(f"{number} is not from 0 to 1")
    return number


def parse_throttled_replicas(text: str) -> str:
    """Return *text* if it is a list of replicas in Kafka's syntax. Raises ValueError if not."""
    parts = [part.strip() for part in text.split(",")]
    if text != "*" and not all(re.fullmatch(r"([0-9]+:[0-9]+)?", part) for part in parts):
        raise ValueError(f"neither * nor a list of partition:broker: {text!r}")
    return text


def parse_gzip_level(text: str) -> int:
    """Parse a gzip level. Raises ValueError if it is neither -1 nor from 1 to 9."""
    level = _whole_number(text)
    if level != -1 and not 1 <= level <= 9:
        raise ValueError(f"{level} is neither -1 nor from 1 to 9")
    return level


#: The names of Kafka's authorizers, whose semantics ours has.
_AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
    "cordwood",
)


def parse_authorizer(text: str) -> str:
    """Return *text* if it names an authorizer, or nothing. Raises ValueError for any other class."""
    if text and text not in _AUTHORIZERS:
        raise ValueError(f"not an authorizer: {text!r}")
    return text


def parse_principals(text: str) -> str:
    """Return a list of principals, separated by semicolons, without empty parts.

    Raises:
        ValueError: If one of them is not ``User:NAME``: no client is called so. Names may contain commas, as
            those of certificates do, but not another principal.
    """
    parts = [part.strip() for part in text.split(";")]
    for part in filter(None, parts):
        kind, _, name = part.partition(":")
        if kind != "User" or not name or ",User:" in name.replace(" ", ""):
            raise ValueError(f"not a principal: {part!r}")
    return ";".join(filter(None, parts))


def text_of(value: object) -> str:
    """Return *value* as the text of a properties file. Parsing the text returns *value*."""
    return str(value).lower() if isinstance(value, bool) else str(value)
