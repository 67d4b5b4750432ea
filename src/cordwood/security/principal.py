"""Principals: who a client is, as authentication found it."""

from __future__ import annotations

from typing import NamedTuple


class Principal(NamedTuple):
    """An authenticated client: ``User:alice``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Parse ``User:alice``. The name may contain colons.

        Raises:
            ValueError: If *text* has no kind or no name.
        """
        kind, _, name = text.partition(":")
        if not kind or not name:
            raise ValueError(f"expected a principal such as User:alice, found {text!r}")
        return cls(kind, name)


#: Every client of a listener without authentication.
ANONYMOUS = Principal("User", "ANONYMOUS")
