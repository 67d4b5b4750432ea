"""Print records for ``consume``: kcat's format strings, and JSON."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

import click
import msgspec

from cordwood.records import Record

Render = Callable[[int, Record], bytes]
"""Returns the printed form of a record of a partition."""
_Part = Callable[[int, Record], bytes]
_TOKEN = re.compile(
    rb"%(?P<letter>.)|\\(?:x(?P<hex>[0-9a-fA-F]{2})|(?P<escape>.))|(?P<text>[^%\\]+|.)", re.DOTALL
)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}


def parse_format(context: click.Context, parameter: click.Parameter, text: str) -> str:
    """Return *text* if it is a valid format; a callback of click."""
    try:
        formatter("", text, null=b"")
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None
    return text


def formatter(topic: str, text: str, *, null: bytes) -> Render:
    """Return a function that prints records in the format *text*, with *null* for a missing part.

    Raises:
        ValueError: If a letter after ``%`` is unknown.
    """
    letters: dict[bytes, _Part] = {
        b"t": lambda partition, record: topic.encode(),
        b"p": lambda partition, record: b"%d" % partition,
        b"o": lambda partition, record: b"%d" % record.offset,
        b"k": lambda partition, record: record.key or (null if record.key is None else b""),
        b"K": lambda partition, record: b"%d" % _length(record.key),
        b"s": lambda partition, record: record.value or (null if record.value is None else b""),
        b"S": lambda partition, record: b"%d" % _length(record.value),
        b"T": lambda partition, record: b"%d" % record.timestamp,
        b"h": lambda partition, record: b",".join(
            name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers
        ),
        b"%": lambda partition, record: b"%",
    }
    parts: list[_Part] = []
    encoded = text.encode(errors="surrogateescape")
    for token in _TOKEN.finditer(encoded):
        letter = token["letter"]
        if letter is not None and letter in letters:
            parts.append(letters[letter])
        elif letter is not None or token[0] == b"%":
            shown = token[0].decode(errors="replace")
            raise ValueError(
                f"{shown} is not a letter of a format: expected %t topic, %p partition, %o offset, %k key, "
                "%s value, %T timestamp, %h headers, %K and %S lengths, or %%"
            )
        else:
            parts.append(_constant(token))
    return lambda partition, record: b"".join([part(partition, record) for part in parts])


def _constant(token: re.Match[bytes]) -> _Part:
    if token["hex"] is not None:
        text = bytes.fromhex(token["hex"].decode())
    elif token["escape"] is not None:
        text = _ESCAPES.get(token["escape"], token[0])
    else:
        text = token[0]
    return lambda partition, record: text


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def json_lines(topic: str) -> Render:
    """Return a function that prints each record as a JSON object on a line."""

    def render(partition: int, record: Record) -> bytes:
        fields = {"topic": topic, "partition": partition, "offset": record.offset, "ts": record.timestamp}
        return msgspec.json.encode({**fields, **record_fields(record)}) + b"\n"

    return render


def record_fields(record: Record) -> dict[str, object]:
    """Return headers, key and payload for JSON: as text, or as base64 under another name."""
    names, values = [name for name, _ in record.headers], [value for _, value in record.headers]
    texts = [_text(value) for value in values]
    readable = all(text is not None or value is None for text, value in zip(texts, values, strict=True))
    shown = texts if readable else [None if value is None else _base64(value) for value in values]
    # As in kcat: names and values alternate.
    headers = [each for pair in zip(names, shown, strict=True) for each in pair]
    return {
        "headers" if readable else "headers_base64": headers,
        **_field("key", record.key),
        **_field("payload", record.value),
    }


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    text = _text(data)
    if text is not None or data is None:
        return {name: text}
    return {f"{name}_base64": _base64(data)}


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
