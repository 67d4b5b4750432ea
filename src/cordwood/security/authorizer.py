"""Decisions by ACLs, with the semantics of Kafka's StandardAuthorizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from cordwood.security.acl_rules import Patterns, RulesByHost, TypeRules
from cordwood.security.acls import WILDCARD, AclBinding, AclFilter, acl_fault, canonical_host
from cordwood.security.principal import Principal
from cordwood.security.resources import Operation, PatternType, ResourceType

#: The resource that Kafka asks about first when it asks for any resource of a type.
_ANY_NAME: Final = "hardcode"
#: The number of answers about any resource of a type that are kept until the next change.
_KEPT_MAX: Final = 4096


class Acls:
    """The ACLs of one org, and the decisions by them. For one thread at a time.

    A DENY overrides every ALLOW; what no ALLOW covers is denied. *super_users* may do everything. With
    *allow_if_none* everyone may use a resource that no ACL covers, whatever the ACL is about.
    """

    def __init__(
        self,
        acls: Iterable[AclBinding] = (),
        super_users: Iterable[Principal] = (),
        *,
        allow_if_none: bool = False,
    ) -> None:
        self._acls: dict[AclBinding, None] = {}
        self._types: dict[ResourceType, TypeRules] = {}
        self._super_users = frozenset(super_users)
        self._allow_if_none = allow_if_none
        self._kept: dict[tuple[Principal, str, Operation, ResourceType], bool] = {}
        for acl in acls:
            self.add(acl)

    def __len__(self) -> int:
        """Return the number of ACLs."""
        return len(self._acls)

    def __contains__(self, acl: AclBinding) -> bool:
        """Return whether there is exactly this ACL."""
        return acl in self._acls

    def matching(self, wanted: AclFilter) -> list[AclBinding]:
        """Return the ACLs that *wanted* selects, in the order in which they were added."""
        return [acl for acl in self._acls if wanted.matches(acl)]

    def add(self, acl: AclBinding) -> None:
        """Add *acl*; nothing changes if it is there already.

        Raises:
            ValueError: If it is not valid.
        """
        if acl in self._acls:
            return
        fault = acl_fault(acl)
        if fault is not None:
            raise ValueError(fault)
        self._acls[acl] = None
        self._types.setdefault(acl.resource_type, TypeRules()).add(acl)
        self._kept.clear()

    def remove(self, acl: AclBinding) -> None:
        """Remove *acl*; nothing changes if there is no such ACL."""
        if acl in self._acls:
            del self._acls[acl]
            self._types[acl.resource_type].remove(acl)
            self._kept.clear()

    def allows(
        self, principal: Principal, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Return whether *principal* at *host* may do *operation* on the resource *name*."""
        if principal in self._super_users:
            return True
        rules = self._types.get(kind)
        if rules is None:
            return self._allow_if_none
        bit, places, allowed = 1 << operation, (_place_of(host), WILDCARD), 0
        for patterns in rules.concerning(principal):
            for by_host in patterns.covering(name):
                for place in places:
                    if place in by_host:
                        if by_host[place].denied & bit:
                            return False
                        allowed |= by_host[place].allowed & bit
        return allowed != 0 or (self._allow_if_none and not rules.cover(name))

    def allows_any(self, principal: Principal, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return whether *principal* at *host* may do *operation* on at least one resource of *kind*.

        As Kafka's authorizeByResourceType: an operation that another one implies must be allowed itself, and
        an ALLOW counts unless a DENY covers all of it.
        """
        key = (principal, host, operation, kind)
        known = self._kept.get(key)
        if known is None:
            known = self.allows(principal, host, operation, kind, _ANY_NAME)
            rules = self._types.get(kind)
            if not known and rules is not None:
                places = (_place_of(host), WILDCARD)
                known = _allow_some(rules.concerning(principal), places, 1 << operation)
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._kept[key] = known
        return known


def _allow_some(rules: Sequence[Patterns[RulesByHost]], places: Sequence[str], bit: int) -> bool:
    """Return whether an ALLOW in *rules* covers a resource that no DENY in them covers."""

    def is_denied(by_host: RulesByHost | None) -> bool:
        return by_host is not None and any(by_host[each].denied & bit for each in places if each in by_host)

    if any(is_denied(each.get(PatternType.LITERAL, WILDCARD)) for each in rules):
        return False
    for patterns in rules:
        for pattern, name, by_host in patterns.items():
            if not any(by_host[each].named & bit for each in places if each in by_host):
                continue
            if pattern == PatternType.LITERAL and any(is_denied(each.get(pattern, name)) for each in rules):
                continue
            if pattern == PatternType.LITERAL and name == WILDCARD:
                return True
            # A denied prefix covers all names that begin with it, and so all longer prefixes.
            if not any(is_denied(by_host) for each in rules for by_host in each.prefixes_of(name)):
                return True
    return False


@lru_cache(maxsize=4096)
def _place_of(host: str) -> str:
    """Return *host* as ACLs are indexed by it; what is no address only matches ACLs for every host."""
    try:
        return canonical_host(host)
    except ValueError:
        return ""
