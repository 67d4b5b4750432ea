"""The ACLs of one org on a server: several threads ask while one changes them."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from cordwood.security import AclBinding, AclFilter, Acls, Operation, Principal, ResourceType


class SharedAcls:
    """Decisions by *acls*, implementing the Authorization interface. Any thread may call any method.

    A decision never sees half of a change: between two steps of it a DENY may be missing.
    """

    def __init__(self, acls: Acls) -> None:
        self._acls = acls
        self._lock = Lock()
        #: A number that changes with every change to the ACLs.
        self.changes = 0

    def allows(
        self, principal: Principal, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Return whether *principal* at *host* may do *operation* on the resource *name*."""
        with self._lock:
            return self._acls.allows(principal, host, operation, kind, name)

    def allows_any(self, principal: Principal, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return whether *principal* at *host* may do *operation* on at least one resource of *kind*."""
        with self._lock:
            return self._acls.allows_any(principal, host, operation, kind)

    def matching(self, wanted: AclFilter) -> list[AclBinding]:
        """Return the ACLs that *wanted* selects, in the order in which they were added."""
        with self._lock:
            return self._acls.matching(wanted)

    def change(self, added: Iterable[AclBinding] = (), removed: Iterable[AclBinding] = ()) -> None:
        """Add and remove ACLs in one step.

        Raises:
            ValueError: If an added one is not valid. Those before it are added.
        """
        with self._lock:
            # First, so that nothing that is decided from here on is cached under the number before.
            self.changes += 1
            for acl in added:
                self._acls.add(acl)
            for acl in removed:
                self._acls.remove(acl)
