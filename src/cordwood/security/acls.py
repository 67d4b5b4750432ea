"""ACLs and filters for them: what an administrator creates, lists and deletes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from cordwood.security.principal import Principal
from cordwood.security.resources import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType

#: As the name of a literal pattern, it is every resource; as a host, every address.
WILDCARD = "*"
#: Every client, whoever it is.
EVERYONE = Principal("User", WILDCARD)
#: The operations that a resource of a type has, besides ALL; Kafka's tools create ACLs for no others.
OPERATIONS: Mapping[ResourceType, frozenset[Operation]] = MappingProxyType(
    {
        ResourceType.TOPIC: frozenset(
            {
                Operation.READ,
                Operation.WRITE,
                Operation.CREATE,
                Operation.DELETE,
                Operation.ALTER,
                Operation.DESCRIBE,
                Operation.DESCRIBE_CONFIGS,
                Operation.ALTER_CONFIGS,
            }
        ),
        ResourceType.GROUP: frozenset(
            {
                Operation.READ,
                Operation.DELETE,
                Operation.DESCRIBE,
                Operation.DESCRIBE_CONFIGS,
                Operation.ALTER_CONFIGS,
            }
        ),
        ResourceType.CLUSTER: frozenset(
            {
                Operation.CREATE,
                Operation.ALTER,
                Operation.DESCRIBE,
                Operation.CLUSTER_ACTION,
                Operation.DESCRIBE_CONFIGS,
                Operation.ALTER_CONFIGS,
                Operation.IDEMPOTENT_WRITE,
            }
        ),
        ResourceType.TRANSACTIONAL_ID: frozenset(
            {Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT}
        ),
        ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
        ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
    }
)
#: The longest name of a resource in an ACL, and the longest principal, in characters.
NAME_MAX = 1000


class AclBinding(NamedTuple):
    """A rule: whether *principal* at *host* may do *operation* on the resources that a pattern covers."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @classmethod
    def of_fields(
        cls,
        resource_type: int,
        resource_name: str,
        pattern_type: int,
        principal: str,
        host: str,
        operation: int,
        permission: int,
    ) -> AclBinding:
        """Return the ACL with these fields, types and operation as Kafka's numbers.

        Raises:
            ValueError: If there is no such number.
        """
        return cls(
            ResourceType(resource_type),
            resource_name,
            PatternType(pattern_type),
            principal,
            host,
            Operation(operation),
            Permission(permission),
        )

    def fields(self) -> tuple[int, str, int, str, str, int, int]:
        """Return the fields as `of_fields` takes them, without the types of this room."""
        kind, name, pattern, principal, host, operation, permission = self
        return int(kind), name, int(pattern), principal, host, int(operation), int(permission)

    def __str__(self) -> str:
        pattern = f"{self.pattern_type.name.lower()} {self.resource_type.name.lower()} {self.resource_name!a}"
        verb = self.permission.name.lower()
        return f"{verb} {self.principal} from host {self.host} {self.operation.name.lower()} on {pattern}"


class AclFilter(NamedTuple):
    """Selects ACLs; None, or ``ANY``, matches every value.

    With the pattern type ``MATCH`` it selects the ACLs that apply to the resource of the name.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: AclBinding) -> bool:
        """Return whether the filter selects *acl*."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: AclBinding) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, WILDCARD)

    @property
    def fault(self) -> str | None:
        """Why the filter is refused, as a sentence; None if it is valid."""
        kinds = (self.resource_type, self.pattern_type, self.operation, self.permission)
        unknown = next((each for each in kinds if not each), None)
        return None if unknown is None else f"the {_WORDS[type(unknown)]} of the filter is unknown"


_WORDS: dict[type, str] = {
    ResourceType: "resource type",
    PatternType: "pattern type",
    Operation: "operation",
    Permission: "permission type",
}


def denials_first(acls: Iterable[AclBinding]) -> list[AclBinding]:
    """Return *acls* in the order in which they are stored; they are deleted in the reverse order.

    Of a change that a crash cuts short, the first entries may be left. They must not allow what the others
    deny.
    """
    return sorted(acls, key=lambda acl: acl.permission != Permission.DENY)


def acl_fault(acl: AclBinding) -> str | None:
    """Return why no such ACL can exist, as a sentence; None if it is valid.

    A rule that could never apply is refused: whoever creates a DENY relies on it.
    """
    for value in (acl.resource_type, acl.operation):
        if value.name in ("UNKNOWN", "ANY"):
            return f"invalid {_WORDS[type(value)]} {value.name}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"invalid pattern type {acl.pattern_type.name}: expected LITERAL or PREFIXED"
    if acl.permission not in (Permission.ALLOW, Permission.DENY):
        return f"invalid permission type {acl.permission.name}: expected ALLOW or DENY"
    return _name_fault(acl) or _principal_fault(acl.principal) or _host_fault(acl.host)


def _name_fault(acl: AclBinding) -> str | None:
    if not 1 <= len(acl.resource_name) <= NAME_MAX:
        return f"the name of a resource must have 1 to {NAME_MAX} characters, not {len(acl.resource_name)}"
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"the only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    return None


def _principal_fault(text: str) -> str | None:
    if len(text) > NAME_MAX:
        return f"a principal must have at most {NAME_MAX} characters, not {len(text)}"
    try:
        Principal.parse(text)
    except ValueError as error:
        return f"{error}"
    return None


def _host_fault(text: str) -> str | None:
    if text == WILDCARD:
        return None
    try:
        canonical_host(text)
    except ValueError:
        return f"host {text[:100]!a} must be an IP address or *: clients are known by their address"
    return None


def canonical_host(text: str) -> str:
    """Return the one form of an IP address that decisions compare.

    An IPv4 address in an IPv6 one is the IPv4 address, as a server that listens on both sees it.

    Raises:
        ValueError: If *text* is no IP address.
    """
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address if mapped is None else mapped)
