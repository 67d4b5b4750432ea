"""The fields of an X.509 certificate that the server needs: its subject, as Kafka writes it, and its term.

The bytes come from OpenSSL, which has checked signature and structure. Nothing here trusts that: any other
bytes raise `CertificateRefused`.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from typing import NamedTuple

_SEQUENCE, _SET, _OBJECT_ID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
#: The attributes that have a name in RFC 2253; others are written as numbers.
_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
#: The types of strings that are written as text, each of them read as UTF-8; others are written as digits.
_STRINGS = {0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E}
_ESCAPED = re.compile(r'[,=+<>#;"\\]')
_TIME = re.compile(rb"([0-9]{2}|[0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})?Z")


class CertificateRefused(Exception):
    """A certificate that does not say who its owner is; says why."""


class Certificate(NamedTuple):
    """The subject of a certificate as RFC 2253 text, and the seconds since 1970 when its term ends."""

    subject: str
    not_after: int


def read_certificate(der: bytes) -> Certificate:
    """Return the fields of the certificate *der*.

    Raises:
        CertificateRefused: If *der* is not a certificate.
    """
    try:
        return _read(memoryview(der))
    except (ValueError, IndexError, StopIteration) as error:
        raise CertificateRefused(f"the certificate cannot be read: {error}") from None


def _read(der: memoryview) -> Certificate:
    outer = _content(next(_elements(der)), _SEQUENCE)
    fields = list(_elements(_content(next(_elements(outer)), _SEQUENCE)))
    if fields[0].tag == _VERSION:
        del fields[0]
    # The serial number, the signature's algorithm and the issuer come first.
    validity, subject = fields[3], fields[4]
    _, not_after = _elements(_content(validity, _SEQUENCE))
    names = [_relative_name(each) for each in _elements(_content(subject, _SEQUENCE))]
    # The most specific part is the last one in the certificate, and the first one in the text.
    return Certificate(",".join(reversed(names)), _seconds(not_after))


class _Element(NamedTuple):
    """An element in DER: its tag, its content, and the whole of it."""

    tag: int
    content: memoryview
    whole: memoryview


def _elements(data: memoryview) -> Iterator[_Element]:
    """Yield the elements that *data* consists of."""
    at = 0
    while at < len(data):
        tag, size, start = data[at], data[at + 1], at + 2
        if tag & 0x1F == 0x1F or size == 0x80:
            raise ValueError("a tag or a length of an unknown form")
        if size > 0x80:
            digits = size & 0x7F
            size, start = int.from_bytes(data[start : start + digits], "big"), start + digits
        if start + size > len(data):
            raise ValueError("it ends before its fields do")
        yield _Element(tag, data[start : start + size], data[at : start + size])
        at = start + size


def _content(element: _Element, tag: int) -> memoryview:
    if element.tag != tag:
        raise ValueError(f"expected an element with the tag {tag:#x}, found {element.tag:#x}")
    return element.content


def _relative_name(element: _Element) -> str:
    """Return one part of a name; it may have several attributes."""
    return "+".join(
        _attribute(*_elements(_content(each, _SEQUENCE))) for each in _elements(_content(element, _SET))
    )


def _attribute(kind: _Element, value: _Element) -> str:
    number = _object_id(bytes(_content(kind, _OBJECT_ID)))
    if number not in _NAMES or value.tag not in _STRINGS:
        return f"{_NAMES.get(number, number)}=#{value.whole.hex()}"
    text = _ESCAPED.sub(r"\\\g<0>", str(value.content, "utf-8")).replace("\0", r"\00")
    # Spaces at both ends are escaped too.
    inner = text.strip(" \r")
    start = text.index(inner) if inner else len(text)
    before, after = text[:start], text[start + len(inner) :]
    return f"{_NAMES[number]}={_escape_each(before)}{inner}{_escape_each(after)}"


def _escape_each(text: str) -> str:
    return "".join(f"\\{character}" for character in text)


def _object_id(content: bytes) -> str:
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _seconds(element: _Element) -> int:
    match = _TIME.fullmatch(element.content)
    if match is None or element.tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError("its term is not a time")
    year, *rest = (int(part or 0) for part in match.groups())
    if element.tag == _UTC_TIME:
        year += 1900 if year >= 50 else 2000
    return calendar.timegm((year, *rest))
