"""ACLs arranged for decisions: by type of resource, by principal, by pattern, by host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from cordwood.security.acls import EVERYONE, WILDCARD, AclBinding, canonical_host
from cordwood.security.prefixes import Prefixes
from cordwood.security.principal import Principal
from cordwood.security.resources import Operation, PatternType, Permission

_EVERYTHING: Final = -1
#: Operations that an ALLOW of the operation allows as well. A DENY denies only what it names.
_IMPLIED: Final = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}
PatternValue = TypeVar("PatternValue")


class Patterns(Generic[PatternValue]):
    """Values by pattern."""

    __slots__ = ("_literal", "_prefixed")

    def __init__(self) -> None:
        self._literal: dict[str, PatternValue] = {}
        self._prefixed: Prefixes[PatternValue] = Prefixes()

    def __bool__(self) -> bool:
        return bool(self._literal) or bool(self._prefixed)

    def get(self, pattern: PatternType, name: str) -> PatternValue | None:
        """Return the value of exactly this pattern, None if it has none."""
        return (self._literal if pattern == PatternType.LITERAL else self._prefixed).get(name)

    def add(self, pattern: PatternType, name: str, value: PatternValue) -> None:
        """Store the value of a pattern that has none."""
        if pattern == PatternType.LITERAL:
            self._literal[name] = value
        else:
            self._prefixed.add(name, value)

    def remove(self, pattern: PatternType, name: str) -> None:
        """Remove the value of a pattern that has one."""
        if pattern == PatternType.LITERAL:
            del self._literal[name]
        else:
            self._prefixed.remove(name)

    def items(self) -> Iterator[tuple[PatternType, str, PatternValue]]:
        """Iterate over the patterns and their values."""
        for name, value in self._literal.items():
            yield PatternType.LITERAL, name, value
        for name, value in self._prefixed.items():
            yield PatternType.PREFIXED, name, value

    def covering(self, name: str) -> list[PatternValue]:
        """Return the values of all patterns that cover the resource *name*."""
        found = self._prefixed.matching(name)
        literal = self._literal
        if name in literal:
            found.append(literal[name])
        if WILDCARD in literal and name != WILDCARD:
            found.append(literal[WILDCARD])
        return found

    def prefixes_of(self, name: str) -> list[PatternValue]:
        """Return the values of all prefixed patterns that cover the resource *name*."""
        return self._prefixed.matching(name)


class HostRules:
    """The rules for one principal on one pattern at one host, as bits by number of the operation.

    ``allowed`` includes implied operations, ``named`` only those of the rules themselves.
    """

    __slots__ = ("acls", "allowed", "denied", "named")

    def __init__(self) -> None:
        self.acls: set[AclBinding] = set()
        self.allowed = self.named = self.denied = 0

    def compile(self) -> None:
        """Compute the bits from the ACLs."""
        self.allowed = self.named = self.denied = 0
        for acl in self.acls:
            bits = _EVERYTHING if acl.operation == Operation.ALL else 1 << acl.operation
            if acl.permission == Permission.DENY:
                self.denied |= bits
            else:
                self.named |= bits
                self.allowed |= bits
                if acl.operation in _IMPLIED:
                    self.allowed |= 1 << _IMPLIED[acl.operation]


#: Rules of one principal on one pattern, by host: a canonical address or the wildcard.
RulesByHost = dict[str, HostRules]


class TypeRules:
    """The rules for one type of resource."""

    __slots__ = ("_counts", "_of")

    def __init__(self) -> None:
        self._of: dict[Principal, Patterns[RulesByHost]] = {}
        #: The number of rules of each pattern, whomever they are for: a list of that one number.
        self._counts: Patterns[list[int]] = Patterns()

    def cover(self, name: str) -> bool:
        """Return whether there is a rule on the resource *name*, whomever it is for."""
        return bool(self._counts.covering(name))

    def concerning(self, principal: Principal) -> list[Patterns[RulesByHost]]:
        """Return the rules for *principal*, and those for everyone."""
        of = self._of
        return [of[each] for each in (principal, EVERYONE) if each in of]

    def add(self, acl: AclBinding) -> None:
        """Add a valid ACL that was not added before."""
        pattern = acl.pattern_type, acl.resource_name
        patterns = self._of.setdefault(Principal.parse(acl.principal), Patterns())
        by_host = patterns.get(*pattern)
        if by_host is None:
            by_host = {}
            patterns.add(*pattern, by_host)
        rules = by_host.setdefault(_place(acl.host), HostRules())
        rules.acls.add(acl)
        rules.compile()
        self._count(acl, 1)

    def remove(self, acl: AclBinding) -> None:
        """Remove an ACL that was added, and everything that only it needed."""
        pattern = acl.pattern_type, acl.resource_name
        principal, place = Principal.parse(acl.principal), _place(acl.host)
        patterns = self._of[principal]
        by_host = patterns.get(*pattern)
        assert by_host is not None
        rules = by_host[place]
        rules.acls.remove(acl)
        rules.compile()
        if not rules.acls:
            del by_host[place]
        if not by_host:
            patterns.remove(*pattern)
        if not patterns:
            del self._of[principal]
        self._count(acl, -1)

    def _count(self, acl: AclBinding, more: int) -> None:
        pattern = acl.pattern_type, acl.resource_name
        known = self._counts.get(*pattern)
        if known is None:
            self._counts.add(*pattern, [more])
            return
        known[0] += more
        if not known[0]:
            self._counts.remove(*pattern)


def _place(host: str) -> str:
    return host if host == WILDCARD else canonical_host(host)
