"""How many entries of a kind the catalogue takes of each org: all of them are in memory."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import QuotaExceeded

#: The most entries of org 0; and the most of all other orgs together, which leaves org 0 its own.
ENTRIES_MAX = 100_000
#: The most entries of each other org.
TENANT_ENTRIES_MAX = 10_000


def check_shares(what: str, before: Mapping[int, int], after: Mapping[int, int]) -> None:
    """Check a change of the number of entries of each org. Removing some is always possible.

    Raises:
        QuotaExceeded: If an org, or all tenants together, would have too many of *what*.
    """
    for org, count in after.items():
        if count <= before.get(org, 0):
            continue
        most = TENANT_ENTRIES_MAX if org else ENTRIES_MAX
        if count > most:
            raise QuotaExceeded(f"org {org} has at most {most:,} {what}")
        if org and sum(after.values()) - after.get(0, 0) > ENTRIES_MAX:
            raise QuotaExceeded(f"all orgs but 0 have at most {ENTRIES_MAX:,} {what} together")
