"""Rules that make the name of a principal from a distinguished name: ``ssl.principal.mapping.rules``.

The semantics are Kafka's. A rule is ``DEFAULT``, which takes the whole name, or ``RULE:pattern/replacement/``
with ``L`` or ``U`` after it for small or capital letters. The first rule whose pattern matches the whole name
decides. Unlike Kafka, which ignores some of them, no text that is not a rule is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from cordwood.security.certificate import CertificateRefused

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<letters>[LU]?))"
    r"\s*(?:,\s*|$)"
)
_PIECE = re.compile(
    r"\\(?P<escaped>.)|\$(?P<number>[0-9]+)|\$\{(?P<name>[A-Za-z][A-Za-z0-9]*)\}|(?P<lost>\$)"
)
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None
    expand: Callable[[re.Match[str]], str]
    letters: str

    def apply(self, name: str) -> str | None:
        """Return the name of the principal, or None if the rule does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        # As in Kafka, every place where the pattern matches is replaced.
        found = self.pattern.sub(self.expand, name)
        return {"L": found.lower, "U": found.upper}.get(self.letters, lambda: found)()


class PrincipalMapping:
    """The rules of one listener."""

    def __init__(self, rules: str) -> None:
        """Parse *rules*, separated by commas; none are the same as ``DEFAULT``.

        Raises:
            ValueError: If a rule is malformed; says which.
        """
        self._rules: list[_Rule] = []
        text, at = rules.strip() or "DEFAULT", 0
        while at < len(text):
            match = _RULE.match(text, at)
            if match is None:
                raise ValueError(f"not a rule: {text[at:]!r}")
            self._rules.append(_rule_of(match))
            at = match.end()

    def name_of(self, distinguished_name: str) -> str:
        """Return the name of the principal.

        Raises:
            CertificateRefused: If no rule matches, or one that matches makes an empty name.
        """
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                if not name:
                    break
                return name
        raise CertificateRefused(f"no rule gives {distinguished_name!r} the name of a principal")


def _rule_of(match: re.Match[str]) -> _Rule:
    if match["default"]:
        return _Rule(None, str, "")
    try:
        # Java writes a named group without the P.
        pattern = re.compile(_NAMED_GROUP.sub("(?P<", match["pattern"]))
    except re.error as error:
        raise ValueError(f"not a pattern: {match['pattern']!r}: {error}") from None
    return _Rule(pattern, _expansion(match["replacement"], pattern), match["letters"])


def _expansion(replacement: str, pattern: re.Pattern[str]) -> Callable[[re.Match[str]], str]:
    """Return a function that fills in *replacement*, in Java's syntax, for a match of *pattern*.

    ``$1`` is a group; further digits belong to its number as long as there is such a group. Without any group
    of that number it is text.
    """
    pieces: list[str | int] = []
    at = 0
    for piece in _PIECE.finditer(replacement):
        pieces.append(replacement[at : piece.start()])
        at = piece.end()
        if piece["lost"] is not None:
            raise ValueError(f"a $ without a group in {replacement!r}")
        if piece["escaped"] is not None:
            pieces.append(piece["escaped"])
        elif piece["name"] is not None:
            if piece["name"] not in pattern.groupindex:
                raise ValueError(f"no group {piece['name']} for {replacement!r}")
            pieces.append(pattern.groupindex[piece["name"]])
        else:
            pieces += _numbered(piece["number"], pattern.groups)
    pieces.append(replacement[at:])
    return lambda match: "".join(piece if isinstance(piece, str) else match[piece] or "" for piece in pieces)


def _numbered(digits: str, groups: int) -> list[str | int]:
    end = 1
    if int(digits[0]) > groups:
        if not groups:
            raise ValueError(f"no group {digits}")
        return [f"${digits}"]
    while end < len(digits) and int(digits[: end + 1]) <= groups:
        end += 1
    return [int(digits[:end]), digits[end:]]
