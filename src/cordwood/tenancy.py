"""Tenants in names: internal names of topics, groups and queries include their tenant.

A tenant is an *org*, a number. A topic that clients of org 7 call ``orders`` is ``orders@7`` in the
catalogue, in directories, in metrics and on the command line; for org 0 it is ``orders``. Clients cannot use
names with an ``@``, so internal names cannot be forged. Ids of groups and queries may contain any character
but cannot begin with NUL; internal ids of all orgs except 0 begin with it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from cordwood.wording import nearest

#: The org of listeners without one.
DEFAULT_ORG = 0
ORG_MAX = 2**64 - 1
MARK = "@"
_NUL = "\0"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_ENDS_LIKE_ANOTHER = re.compile(r"@(?:0|[1-9][0-9]{0,19})\Z")


class Owned(NamedTuple):
    """A client's name for something, and its org."""

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
    """Return the internal name of the topic *name* of *org*."""
    return f"{name}{MARK}{org}" if org else name


def split(qualified: str) -> Owned:
    """Return the org of topic *qualified* and the clients' name for it: the inverse of `qualify`.

    Raises:
        ValueError: If the text after an ``@`` is not the number of an org, or is 0.
    """
    name, mark, number = qualified.rpartition(MARK)
    if not mark:
        return Owned(qualified, DEFAULT_ORG)
    org = parse_org(number)
    if org == DEFAULT_ORG:
        raise ValueError(f"org 0 is not written: {qualified!r}")
    return Owned(name, org)


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return the topic of *known* that was probably meant by *name*: one of the same org and not internal.

    All of them are internal names. A topic of another org is never returned.
    """
    try:
        asked = split(name)
    except ValueError:
        return None
    found = {}
    for each in known:
        # A damaged catalogue may have names of no org.
        with contextlib.suppress(ValueError):
            owned = split(each)
            if owned.org == asked.org and not owned.name.startswith("__"):
                found[owned.name] = each
    return found.get(nearest(asked.name, found.keys()) or "")


def qualify_id(client_id: str, org: int) -> str:
    """Return the internal id of the group or query *client_id* of *org*."""
    return f"{_NUL}{org}{_NUL}{client_id}" if org else client_id


def split_id(qualified: str) -> Owned:
    """Return the org of a group or query and the clients' id for it: the inverse of `qualify_id`.

    Raises:
        ValueError: If it begins with NUL and the number of an org does not follow.
    """
    if not qualified.startswith(_NUL):
        return Owned(qualified, DEFAULT_ORG)
    number, nul, client_id = qualified[1:].partition(_NUL)
    org = parse_org(number)
    if not nul or org == DEFAULT_ORG:
        raise ValueError(f"of no org: {qualified!r}")
    return Owned(client_id, org)


def is_client_id(text: str) -> bool:
    """Return whether a client may use this id for a group or a query."""
    return not text.startswith(_NUL)


def show_id(qualified: str) -> str:
    """Return a group or query as people and metrics see it: ``billing@7``, or ``billing`` in org 0.

    The result is unique: an id of org 0 that ends like one of another org gets the suffix ``@0``.
    """
    try:
        client_id, org = split_id(qualified)
    except ValueError:
        return qualified
    if org:
        return f"{client_id}{MARK}{org}"
    return f"{client_id}{MARK}0" if _ENDS_LIKE_ANOTHER.search(client_id) else client_id


def parse_shown_id(shown: str) -> str:
    """Return the internal id of a group or query that is shown like this: the inverse of `show_id`."""
    client_id, mark, number = shown.rpartition(MARK)
    try:
        return qualify_id(client_id, parse_org(number)) if mark else shown
    except ValueError:
        return shown
