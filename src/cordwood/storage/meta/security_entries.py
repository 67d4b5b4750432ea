"""Entries of the catalogue about security: ACLs, SCRAM users and client quotas.

What they mean is decided above storage. Here they only must be complete and possible: an entry that cannot be
read is never taken for one that is not there, so it keeps the directory from opening.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

import msgspec

from cordwood.errors import MetadataDamaged
from cordwood.tenancy import ORG_MAX

#: The longest name in an entry, in characters.
STORED_NAME_MAX = 1000
#: How many bytes the keys of a mechanism have.
_KEY_BYTES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
_SALT_BYTES_MAX = 256
_ITERATIONS_MAX = 1_000_000
_QUOTA_ENTITIES = {"user", "client-id", "ip"}
_QUOTA_LIMITS = {
    "connection_creation_rate",
    "consumer_byte_rate",
    "controller_mutation_rate",
    "producer_byte_rate",
    "request_percentage",
}


class _AclFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ACL; types, operation and permission are Kafka's numbers."""

    org: int
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclEntry(_AclFields, frozen=True, tag_field="kind", tag="acl"):
    """An ACL of an org was created."""


class AclDeletedEntry(_AclFields, frozen=True, tag_field="kind", tag="acl-deleted"):
    """The ACL with these fields was deleted."""


class ScramUserEntry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="scram-user"
):
    """The credential of a user for one mechanism; replaces an earlier one. Bytes are in base64."""

    name: str
    mechanism: str
    iterations: int
    salt: str
    stored_key: str
    server_key: str

    def __repr__(self) -> str:
        # Without the keys: an entry may end up in an error or a log.
        return f"ScramUserEntry(name={self.name!r}, mechanism={self.mechanism!r})"


class ScramUserDeletedEntry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="scram-user-deleted"
):
    """The credential of a user for one mechanism was deleted."""

    name: str
    mechanism: str


class DecoySeedEntry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="decoy-seed"
):
    """The seed of the credentials of users that do not exist, in base64; the last one counts."""

    seed: str

    def __repr__(self) -> str:
        return "DecoySeedEntry()"


class ClientQuotaEntry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="client-quota"
):
    """The limits of an entity of an org; replaces earlier ones, and without limits removes them.

    *entity* has a name by type: ``user``, ``client-id``, both, or ``ip``. None is the default of the type.
    """

    org: int
    entity: dict[str, str | None]
    limits: dict[str, float]


SecurityEntry = (
    AclEntry | AclDeletedEntry | ScramUserEntry | ScramUserDeletedEntry | DecoySeedEntry | ClientQuotaEntry
)
#: The types of an entity and the name for each, sorted by type.
QuotaKey = tuple[tuple[str, str | None], ...]


def quota_key(entity: dict[str, str | None]) -> QuotaKey:
    """Return *entity* as a key."""
    return tuple(sorted(entity.items(), key=lambda item: item[0]))


class SecurityContents:
    """ACLs, users and quotas after all entries."""

    def __init__(self) -> None:
        #: In the order in which they were created.
        self.acls: dict[int, dict[AclEntry, None]] = {}
        #: By name, then by mechanism.
        self.scram_users: dict[str, dict[str, ScramUserEntry]] = {}
        self.decoy_seed: DecoySeedEntry | None = None
        self.client_quotas: dict[int, dict[QuotaKey, ClientQuotaEntry]] = {}

    def copy(self) -> SecurityContents:
        """Return an independent copy."""
        made = SecurityContents()
        made.acls = {org: dict(acls) for org, acls in self.acls.items()}
        made.scram_users = {name: dict(each) for name, each in self.scram_users.items()}
        made.decoy_seed = self.decoy_seed
        made.client_quotas = {org: dict(each) for org, each in self.client_quotas.items()}
        return made

    def apply(self, entry: SecurityEntry) -> bool:
        """Apply the next entry; return whether it changed anything."""
        match entry:
            case AclEntry():
                acls = self.acls.setdefault(entry.org, {})
                changed = entry not in acls
                acls[entry] = None
            case AclDeletedEntry():
                gone = AclEntry(**msgspec.structs.asdict(entry))
                changed = _discard(self.acls, entry.org, gone)
            case ScramUserEntry():
                credentials = self.scram_users.setdefault(entry.name, {})
                changed = credentials.get(entry.mechanism) != entry
                credentials[entry.mechanism] = entry
            case ScramUserDeletedEntry():
                changed = _discard(self.scram_users, entry.name, entry.mechanism)
            case DecoySeedEntry():
                changed, self.decoy_seed = self.decoy_seed != entry, entry
            case ClientQuotaEntry():
                key = quota_key(entry.entity)
                known = self.client_quotas.get(entry.org, {}).get(key)
                changed = known != entry if entry.limits else known is not None
                if entry.limits:
                    self.client_quotas.setdefault(entry.org, {})[key] = entry
                else:
                    _discard(self.client_quotas, entry.org, key)
        return changed

    def counts(self) -> dict[str, dict[int, int]]:
        """Return how many there are of each kind and org. Users are org 0's."""
        return {
            "ACLs": {org: len(each) for org, each in self.acls.items()},
            "users": {0: len(self.scram_users)},
            "client quotas": {org: len(each) for org, each in self.client_quotas.items()},
        }


def _discard(of: dict[Any, dict[Any, Any]], owner: object, key: object) -> bool:
    """Remove *key* of *owner*, and the owner with its last one; return whether it was there."""
    owned = of.get(owner, {})
    if key not in owned:
        return False
    del owned[key]
    if not owned:
        del of[owner]
    return True


def check_security_entry(path: str, entry: SecurityEntry) -> None:
    """Refuse an entry of the catalogue at *path* that is incomplete or impossible.

    Raises:
        MetadataDamaged: With what is wrong, and never with a key.
    """
    match entry:
        case AclEntry() | AclDeletedEntry():
            faults = _acl_faults(entry)
        case ScramUserEntry():
            faults = _user_faults(entry)
        case ScramUserDeletedEntry():
            faults = [_name_fault("name", entry.name), _mechanism_fault(entry.mechanism)]
        case DecoySeedEntry():
            faults = [_bytes_fault("seed", entry.seed, 32, 32)]
        case ClientQuotaEntry():
            faults = _quota_faults(entry)
    fault = next(filter(None, faults), None)
    if fault is not None:
        raise MetadataDamaged(path, f"an entry of kind {entry.__struct_config__.tag}: {fault}")


def _range_fault(what: str, number: int, first: int, last: int) -> str | None:
    return None if first <= number <= last else f"{what} {number}: must be {first} to {last}"


def _name_fault(what: str, name: str) -> str | None:
    if 1 <= len(name) <= STORED_NAME_MAX:
        return None
    return f"a {what} of {len(name)} characters: must be 1 to {STORED_NAME_MAX}"


def _acl_faults(entry: AclEntry | AclDeletedEntry) -> Iterable[str | None]:
    yield _range_fault("org", entry.org, 0, ORG_MAX)
    yield _range_fault("resource type", entry.resource_type, 2, 7)
    yield _range_fault("pattern type", entry.pattern_type, 3, 4)
    yield _range_fault("operation", entry.operation, 2, 15)
    yield _range_fault("permission", entry.permission, 2, 3)
    yield _name_fault("resource name", entry.resource_name)
    yield _name_fault("principal", entry.principal)
    yield _name_fault("host", entry.host)
    kind, _, name = entry.principal.partition(":")
    if not kind or not name:
        yield f"principal {entry.principal!a}: must be like User:alice"


def _mechanism_fault(mechanism: str) -> str | None:
    return None if mechanism in _KEY_BYTES else f"mechanism {mechanism[:100]!a} is unknown"


def _user_faults(entry: ScramUserEntry) -> Iterable[str | None]:
    yield _name_fault("name", entry.name)
    yield _mechanism_fault(entry.mechanism)
    yield _range_fault("iterations", entry.iterations, 1, _ITERATIONS_MAX)
    size = _KEY_BYTES.get(entry.mechanism, 0)
    yield _bytes_fault("salt", entry.salt, 1, _SALT_BYTES_MAX)
    yield _bytes_fault("stored key", entry.stored_key, size, size)
    yield _bytes_fault("server key", entry.server_key, size, size)


def _bytes_fault(what: str, text: str, least: int, most: int) -> str | None:
    try:
        size = len(base64.b64decode(text, validate=True))
    except ValueError:
        return f"the {what} is not in base64"
    return _range_fault(f"bytes of the {what}:", size, least, most)


def _quota_faults(entry: ClientQuotaEntry) -> Iterable[str | None]:
    yield _range_fault("org", entry.org, 0, ORG_MAX)
    types = entry.entity.keys()
    if not types or not types <= _QUOTA_ENTITIES or ("ip" in types and len(types) > 1):
        yield f"entity of {sorted(types)!a}: must be of user, client-id, both, or ip"
    for name in entry.entity.values():
        yield None if name is None else _name_fault("name of an entity", name)
    for limit, value in entry.limits.items():
        if limit not in _QUOTA_LIMITS:
            yield f"limit {limit[:100]!a} is unknown"
        if not (math.isfinite(value) and value > 0):
            yield f"{limit} {value}: must be a number above 0"
