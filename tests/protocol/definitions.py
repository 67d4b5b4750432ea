"""Kafka's own definitions of its messages, as kafka-python ships them, and random messages made from them.

A message is *plain* here: a dict from Kafka's field names in snake case to values, with nested dicts and
lists. It is what every implementation's message is turned into before two of them are compared, and it is
made from Kafka's definitions and not from ours, so that a field we forgot or put in the wrong version shows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kafka.protocol.schemas import BaseField, load_json
from protocol.newer_definitions import NEWER
from support.seeds import seed_or

from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.schema import Versions

Plain = dict[str, Any]

#: What the headers of all frames in these tests say.
CORRELATION_ID = 0x01020304
CLIENT_ID = "client-é"
#: Random messages are the same in each run. Another number gives others.
SEED = seed_or(20_260_301)

TEXTS = ("", "a", "topic-1", "Grüße", "日本語", "🪵", "x" * 126, "y" * 127, "é" * 200, "\0\x7f")
BLOBS = (b"", b"\0", bytes(range(256)), b"k" * 126, b"v" * 127)
#: A moment that a datetime can hold to the millisecond, as one oracle keeps append times in one.
MOMENTS = (-1, 0, 1, 1_700_000_000_123, 4_102_444_800_000)


@dataclass(frozen=True)
class Case:
    """One direction of one version of one API."""

    key: ApiKey
    version: int
    direction: str

    @property
    def name(self) -> str:
        """Kafka's name for the message."""
        words = self.key.name.title().replace("_", "")
        return f"{words}{self.direction.title()}"

    def __str__(self) -> str:
        return f"{self.name}-v{self.version}"


def all_cases() -> Iterator[Case]:
    for key, api in APIS.items():
        for version in range(api.versions.first, api.versions.last + 1):
            yield Case(key, version, "request")
            yield Case(key, version, "response")


@dataclass(frozen=True)
class KafkaField:
    """A field as Kafka defines it. ``fields`` are those of the struct it holds, if it holds any."""

    name: str
    type: str
    versions: Versions
    nullable: Versions | None
    tag: int | None
    default: object
    fields: tuple[KafkaField, ...] = field(default=(), compare=False)

    def nullable_in(self, version: int) -> bool:
        return self.nullable is not None and version in self.nullable


@cache
def definition(name: str) -> dict[str, Any]:
    json: dict[str, Any] = NEWER[name] if name in NEWER else load_json(name)
    return json


@cache
def kafka_fields(name: str) -> tuple[KafkaField, ...]:
    json = definition(name)
    common = {each["name"]: each["fields"] for each in json.get("commonStructs", [])}
    return _fields(json["fields"], common)


def _fields(json: list[dict[str, Any]], common: Mapping[str, Any]) -> tuple[KafkaField, ...]:
    return tuple(
        KafkaField(
            BaseField.underscore_name(each["name"]),
            each["type"],
            Versions.parse(each["versions"]),
            Versions.parse(each["nullableVersions"]) if "nullableVersions" in each else None,
            each.get("tag"),
            each.get("default"),
            _fields(each.get("fields") or common.get(each["type"].removeprefix("[]"), []), common),
        )
        for each in json
    )


def random_message(rng: random.Random, case: Case, texts: Sequence[str] = TEXTS) -> Plain:
    """Return a valid message of *case*: nulls, empties, extremes, text beyond ASCII, tags present or not."""
    message = _Maker(rng, case.version, texts).struct(kafka_fields(case.name))
    if case.name == "ApiVersionsResponse" and case.version:
        # One oracle knows that an error comes in version 0 only, and reads it so.
        message["error_code"] = 0
    return message


def small_message(case: Case) -> Plain:
    """Return a message of *case* that says something in all of its parts, in a few hundred bytes at most."""
    rng = random.Random(f"{SEED} small {case}")
    maker = _Maker(rng, case.version, TEXTS[:6], small=True)
    found = sorted((maker.struct(kafka_fields(case.name)) for _ in range(9)), key=lambda each: len(str(each)))
    message = found[-2]
    if case.name == "ApiVersionsResponse":
        message["error_code"] = 0
    return message


def crowded_message(case: Case, depth: int) -> Plain:
    """Return a message of *case* whose arrays at nesting *depth* hold many of the smallest elements.

    Arrays further out hold one element, those further in none: so hardly a byte comes after the many.
    """
    return _crowded_struct(kafka_fields(case.name), case.version, depth)


def _crowded_struct(fields: tuple[KafkaField, ...], version: int, depth: int) -> Plain:
    return {each.name: _crowded_value(each, version, depth) for each in fields if version in each.versions}


def _crowded_value(each: KafkaField, version: int, depth: int) -> Any:
    if each.tag is not None:
        return default_of(each)
    if each.type.startswith("[]"):
        count = 1 if depth > 1 and each.fields else 60 if depth == 1 else 0
        return [_crowded_element(each, each.type[2:], version, depth - 1) for _ in range(count)]
    if each.fields and each.nullable_in(version):
        return None
    return _crowded_element(each, each.type, version, depth)


def _crowded_element(each: KafkaField, kind: str, version: int, depth: int) -> Any:
    if each.fields:
        return _crowded_struct(each.fields, version, depth)
    empty = {"string": "", "bytes": b"", "records": b"", "uuid": bytes(16), "bool": False}
    return empty.get(kind, 0)


@dataclass(frozen=True)
class _Maker:
    """Makes random values of one version."""

    rng: random.Random
    version: int
    texts: Sequence[str]
    small: bool = False

    def struct(self, fields: tuple[KafkaField, ...]) -> Plain:
        return {each.name: self.value(each) for each in fields if self.version in each.versions}

    def value(self, each: KafkaField) -> Any:
        rng = self.rng
        if each.nullable_in(self.version) and rng.random() < 0.2:
            return None
        if each.tag is not None and rng.random() < 0.4:
            return default_of(each)
        if not each.type.startswith("[]"):
            return self.element(each, each.type)
        # Now and then a compact count takes two bytes.
        counts = (1, 1, 2) if self.small else (0, 1, 1, 2, 3) if each.fields else (0, 1, 2, 3, 127, 128)
        return [self.element(each, each.type[2:]) for _ in range(rng.choice(counts))]

    def element(self, each: KafkaField, kind: str) -> Any:
        rng = self.rng
        if each.fields:
            return self.struct(each.fields)
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "string":
            return rng.choice(self.texts)
        if kind in ("bytes", "records"):
            return rng.choice(BLOBS[:2] if self.small else BLOBS)
        if kind == "uuid":
            return rng.choice((bytes(16), rng.randbytes(16)))
        if each.name.endswith("error_code"):
            return int(rng.choice(list(ErrorCode)))
        if each.name == "log_append_time_ms":
            return rng.choice(MOMENTS)
        if each.name == "transaction_start_time_ms":
            return rng.choice(MOMENTS[1:])  # one oracle cannot say that there is none
        if kind == "float64":
            return rng.choice((0.0, -1.5, 1024.0, float("inf"), rng.uniform(-1e300, 1e300)))
        if kind == "uint16":
            return rng.choice((0, 1, 9092, 2**16 - 1))
        bits = int(kind.removeprefix("int"))
        if each.name in ("retention_time_ms", "session_lifetime_ms"):
            bits = 48  # one oracle keeps it in a timedelta, which loses milliseconds beyond
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        return rng.choice((low, -1, 0, 1, high, rng.randint(low, high)))


def default_of(each: KafkaField) -> Any:
    """Return what a field that is absent stands for."""
    if each.default == "null":
        return None
    if each.type.startswith("[]"):
        return []
    if each.fields:
        return {nested.name: default_of(nested) for nested in each.fields}
    if each.type == "uuid":
        return bytes(16)
    if each.type == "bool":
        return str(each.default).lower() == "true"
    if each.type in ("string", "bytes"):
        return each.default or ("" if each.type == "string" else b"")
    if each.type == "float64":
        return float(str(each.default or 0))
    return int(str(each.default), 0) if each.default is not None else 0
