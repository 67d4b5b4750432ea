"""Regular expressions of clients, as in Kafka in the syntax of RE2, which matches in linear time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


class InvalidPattern(ValueError):
    """A text that is not a regular expression of RE2."""


def whole_match(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether *pattern* matches a whole text.

    Raises:
        InvalidPattern: If it is not a regular expression.
    """
    # Imported here: most servers never need it.
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        raise InvalidPattern(
            reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        ) from None
    return lambda text: compiled.fullmatch(text) is not None


def id_pattern(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that says whether a whole id matches *pattern*; all match None and nothing.

    Raises:
        InvalidPattern: If it is not a regular expression.
    """
    return whole_match(pattern) if pattern else lambda text: True


def matching_names(patterns: Iterable[str], names: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """Return the *names* that each pattern matches; none for one that is not a regular expression."""
    every = list(names)
    found = {}
    for pattern in patterns:
        try:
            matches = whole_match(pattern)
        except InvalidPattern:
            # Another version of RE2 accepted it, before the group was moved here.
            found[pattern] = frozenset[str]()
        else:
            found[pattern] = frozenset(filter(matches, every))
    return found
