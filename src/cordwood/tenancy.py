"""Tenants in names: whose topic, group or query something is, told by what it is called inside.

A tenant is an *org*, a number. What the clients of org 7 call ``orders`` is ``orders@7`` in the catalogue,
in directories, in metrics and on the command line; what those of org 0 call so is ``orders``. Clients cannot
give names with an ``@``, so nobody can forge one. Ids of groups and queries may hold any character but
cannot begin with NUL, which is what those of all orgs but 0 begin with inside.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: The org of listeners that were given none.
DEFAULT_ORG = 0
ORG_MAX = 2**64 - 1
MARK = "@"
_NUL = "\0"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_ENDS_LIKE_ANOTHER = re.compile(r"@(?:0|[1-9][0-9]{0,19})\Z")


class Owned(NamedTuple):
    """What the clients of an org call something, and the org."""

    name: str
    org: int


def parse_org(text: str) -> int:
    """Return the number of an org.

    Raises:
        ValueError: If *text* is not one from 0 to 18446744073709551615, without leading zeros.
    """
    if not _NUMBER.fullmatch(text) or int(text) > ORG_MAX:
        raise ValueError(f"not the number of an org: {text!r}")
    return int(text)


def qualify(name: str, org: int) -> str:
    """Return what the topic that clients of *org* call *name* is called inside."""
    return f"{name}{MARK}{org}" if org else name


def split(qualified: str) -> Owned:
    """Return whose topic *qualified* is, and what its clients call it: the reverse of `qualify`.

    Raises:
        ValueError: If what comes after an ``@`` is not the number of an org, or 0.
    """
    name, mark, number = qualified.rpartition(MARK)
    if not mark:
        return Owned(qualified, DEFAULT_ORG)
    org = parse_org(number)
    if org == DEFAULT_ORG:
        raise ValueError(f"org 0 is not written: {qualified!r}")
    return Owned(name, org)


def qualify_id(client_id: str, org: int) -> str:
    """Return what the group or query that clients of *org* call *client_id* is called inside."""
    return f"{_NUL}{org}{_NUL}{client_id}" if org else client_id


def split_id(qualified: str) -> Owned:
    """Return whose group or query this is, and what its clients call it: the reverse of `qualify_id`.

    Raises:
        ValueError: If it begins with NUL and does not go on with the number of an org.
    """
    if not qualified.startswith(_NUL):
        return Owned(qualified, DEFAULT_ORG)
    number, nul, client_id = qualified[1:].partition(_NUL)
    org = parse_org(number)
    if not nul or org == DEFAULT_ORG:
        raise ValueError(f"of no org: {qualified!r}")
    return Owned(client_id, org)


def is_client_id(text: str) -> bool:
    """Return whether a client may call a group or a query so."""
    return not text.startswith(_NUL)


def show_id(qualified: str) -> str:
    """Return a group or query as people and metrics see it: ``billing@7``, or ``billing`` in org 0.

    No two are shown alike: one of org 0 that ends as if it were another's gets ``@0`` behind it.
    """
    try:
        client_id, org = split_id(qualified)
    except ValueError:
        return qualified
    if org:
        return f"{client_id}{MARK}{org}"
    return f"{client_id}{MARK}0" if _ENDS_LIKE_ANOTHER.search(client_id) else client_id


def parse_shown_id(shown: str) -> str:
    """Return what a group or query that is shown so is called inside: the reverse of `show_id`."""
    client_id, mark, number = shown.rpartition(MARK)
    try:
        return qualify_id(client_id, parse_org(number)) if mark else shown
    except ValueError:
        return shown
