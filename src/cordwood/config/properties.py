"""Parser of Java's .properties syntax, the syntax of Kafka's server.properties."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cordwood.errors import ConfigError


def parse_properties(text: str) -> dict[str, str]:
    """Return the settings in *text*, a Java properties file such as ``server.properties``.

    If a name is set twice, the last value is used. Values keep trailing whitespace, as in Java;
    :meth:`Setting.parse` drops it.

    Raises:
        ConfigError: With the line number, for a malformed escape or a value without a name.
    """
    settings = {}
    for number, line in _logical_lines(text):
        # The name ends at the first =, : or whitespace that no backslash precedes.
        raw_name = re.match(r"(?:\\.|[^\\=: \t\f])*", line, re.DOTALL)
        assert raw_name is not None
        raw_value = re.sub(r"^[ \t\f]*[=:]?[ \t\f]*", "", line[raw_name.end() :])
        if not raw_name[0]:
            raise ConfigError("", f"line {number}: a value without a name")
        try:
            settings[_unescape(raw_name[0])] = _unescape(raw_value)
        except ValueError:
            expected = "expected \\u and the four hexadecimal digits of a character"
            raise ConfigError(raw_name[0], f"line {number}: {raw_name[0]}: {expected}") from None
    return settings


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each non-empty logical line, with continuations joined, and the number of its first line."""
    lines = iter(enumerate(re.split(r"\r\n|\r|\n", text), start=1))
    for number, line in lines:
        logical = line.lstrip(" \t\f")
        if logical.startswith(("#", "!")):
            continue
        # An even number of trailing backslashes is all escapes; an odd number continues the line.
        while (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1] + next(lines, (0, ""))[1].lstrip(" \t\f")
        if logical:
            yield number, logical


def _unescape(raw: str) -> str:
    """Resolve backslash escapes. Raises ValueError for a malformed one."""

    def character(escape: re.Match[str]) -> str:
        if escape[1][0] != "u":
            return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(escape[1], escape[1])
        if not re.fullmatch(r"u[0-9A-Fa-f]{4}", escape[1]):
            raise ValueError(f"malformed escape {escape[0]!r}")
        return chr(int(escape[1][1:], 16))

    resolved = re.sub(r"\\(u.{0,4}|.)", character, raw, flags=re.DOTALL)
    # Java writes a character beyond the first 65,536 as two escapes, which become one character here.
    return resolved.encode("utf-16", "surrogatepass").decode("utf-16")
