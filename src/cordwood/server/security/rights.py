"""What the client of a request may do: the one question that every handler asks."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from cordwood.protocol import ErrorCode
from cordwood.security import CLUSTER_NAME, Operation, Principal, ResourceType
from cordwood.server.connections import Exchange

#: The error code that says that an operation on a resource of this type is not allowed.
_CODES = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
#: The operations that a resource of this type has, as answers report them.
_OPERATIONS = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
_EVERY_OPERATION = {kind: sum(1 << each for each in operations) for kind, operations in _OPERATIONS.items()}


class Authorization(Protocol):
    """Decides by the ACLs of one org.

    Any thread may ask, while another changes the ACLs: it gets the decision of before or after a change.
    No question blocks.
    """

    @property
    def changes(self) -> int:
        """A number that changes with every change to the ACLs: decisions may be cached under it."""

    def allows(
        self, principal: Principal, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Return whether *principal* at *host* may do *operation* on the resource *name*."""

    def allows_any(self, principal: Principal, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return whether *principal* at *host* may do *operation* on at least one resource of *kind*."""


class Rights:
    """The rights of the client of one request; without *authorization* it may do everything.

    The names of resources are those that clients use. Any thread may ask.
    """

    __slots__ = ("_authorization", "_host", "_principal")

    def __init__(self, authorization: Authorization | None, exchange: Exchange) -> None:
        self._authorization = authorization
        self._principal = exchange.principal
        # Kafka's clients show an address with a leading slash; ACLs have it without.
        self._host = exchange.peer.removeprefix("/")

    @property
    def key(self) -> Hashable:
        """A key for answers that depend on these rights: clients with another one must not share them."""
        decides = self._authorization
        return None if decides is None else (self._principal, self._host, decides.changes)

    # --- what is allowed --------------------------------------------------------------------------

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the client may do *operation* on the resource *name*, as the client calls it."""
        decides = self._authorization
        return decides is None or decides.allows(self._principal, self._host, operation, kind, name)

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the client may do *operation* on at least one resource of *kind*."""
        decides = self._authorization
        return decides is None or decides.allows_any(self._principal, self._host, operation, kind)

    def allows_cluster(self, operation: Operation) -> bool:
        """Return whether the client may do *operation* on the cluster."""
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    # --- what a request is refused ----------------------------------------------------------------

    def topic_refusal(self, operation: Operation, name: str) -> ErrorCode | None:
        """Return the error code if the client may not do *operation* on a topic, or None."""
        return self._refusal(ResourceType.TOPIC, name, operation)

    def group_refusal(self, operation: Operation, group_id: str) -> ErrorCode | None:
        """Return the error code if the client may not do *operation* on a group, or None."""
        return self._refusal(ResourceType.GROUP, group_id, operation)

    def transaction_refusal(self, operation: Operation, transactional_id: str) -> ErrorCode | None:
        """Return the error code if the client may not do *operation* on a transactional id, or None."""
        return self._refusal(ResourceType.TRANSACTIONAL_ID, transactional_id, operation)

    def cluster_refusal(self, *operations: Operation) -> ErrorCode | None:
        """Return the error code if the client may do none of *operations* on the cluster, or None."""
        return self._refusal(ResourceType.CLUSTER, CLUSTER_NAME, *operations)

    def _refusal(self, kind: ResourceType, name: str, *operations: Operation) -> ErrorCode | None:
        """Return the error code if the client may do none of *operations* on a resource, or None.

        Every part of a request that is denied comes here once; the other methods only ask.
        """
        if any(self.allows(operation, kind, name) for operation in operations):
            return None
        return _CODES[kind]

    # --- what an answer shows ---------------------------------------------------------------------

    def sees(self, kind: ResourceType, name: str, operation: Operation = Operation.DESCRIBE) -> bool:
        """Return whether an answer may show the resource *name*, or with another *operation* more of it.

        What the client does not see is left out, and nothing is refused.
        """
        return self.allows(operation, kind, name)

    def sees_topic(self, name: str) -> bool:
        """Return whether an answer may show a topic; see `sees`."""
        return self.sees(ResourceType.TOPIC, name)

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the allowed operations on a resource, as bits by the numbers of the operations."""
        decides = self._authorization
        if decides is None:
            return _EVERY_OPERATION[kind]
        return sum(
            1 << operation
            for operation in _OPERATIONS[kind]
            if decides.allows(self._principal, self._host, operation, kind, name)
        )

    def cluster_operations(self) -> int:
        """Return the allowed operations on the cluster; none for a client that may not describe it."""
        if not self.sees(ResourceType.CLUSTER, CLUSTER_NAME):
            return 0
        return self.operations(ResourceType.CLUSTER)
