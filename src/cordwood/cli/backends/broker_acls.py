"""ACLs at a broker, through confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cordwood.errors import CordwoodError
from cordwood.kafka_client import KafkaClient
from cordwood.security import AclBinding, AclFilter


class BrokerAcls:
    """The ACLs of a broker: those of the org of its listener."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._kafka = client.kafka.admin

    def find(self, wanted: Iterable[AclFilter]) -> list[AclBinding]:
        """Return the ACLs that any of *wanted* selects.

        Raises:
            CordwoodError: If the broker does not tell them to this client.
        """
        found: dict[AclBinding, None] = {}
        for each in wanted:
            future = self._client.admin.describe_acls(
                self._filter(each), request_timeout=self._client.seconds
            )
            for acl in self._client.asked("listing ACLs", future.result):
                found[_binding(acl)] = None
        if not found:
            self._check_allowed()
        return list(found)

    def _check_allowed(self) -> None:
        """Check that the client may list ACLs: confluent-kafka returns none where a broker refuses."""
        future = self._client.admin.describe_cluster(
            include_authorized_operations=True, request_timeout=self._client.seconds
        )
        allowed = self._client.asked("listing ACLs", future.result).authorized_operations
        # It is None if there is not one.
        if self._kafka.AclOperation.DESCRIBE not in (allowed or ()):
            address = self._client.address
            raise CordwoodError(f"listing ACLs at {address} failed: this needs DESCRIBE on the cluster")

    def create(self, acls: Iterable[AclBinding]) -> None:
        """Create ACLs."""
        asked = [self._kafka.AclBinding(*self._fields(acl)) for acl in acls]
        futures = self._client.admin.create_acls(asked, request_timeout=self._client.seconds)
        for future in futures.values():
            self._client.asked("creating an ACL", future.result)

    def delete(self, wanted: Iterable[AclFilter]) -> list[AclBinding]:
        """Delete the ACLs that any of *wanted* selects, and return them."""
        asked = [self._filter(each) for each in wanted]
        futures = self._client.admin.delete_acls(asked, request_timeout=self._client.seconds)
        found: dict[AclBinding, None] = {}
        for future in futures.values():
            for acl in self._client.asked("deleting ACLs", future.result):
                found[_binding(acl)] = None
        return list(found)

    def _filter(self, wanted: AclFilter) -> Any:
        return self._kafka.AclBindingFilter(*self._fields(wanted))

    def _fields(self, acl: AclBinding | AclFilter) -> list[Any]:
        """Return the fields with the types of the client.

        Raises:
            CordwoodError: If the client does not know one of the values.
        """
        kafka = self._kafka
        try:
            return [
                # The client calls the cluster a broker; the number is the same.
                kafka.ResourceType(int(acl.resource_type)),
                acl.resource_name,
                kafka.ResourcePatternType(int(acl.pattern_type)),
                acl.principal,
                acl.host,
                kafka.AclOperation(int(acl.operation)),
                kafka.AclPermissionType(int(acl.permission)),
            ]
        except ValueError as error:
            raise CordwoodError(f"confluent-kafka cannot ask for this ACL: {error}") from error


def _binding(acl: Any) -> AclBinding:
    return AclBinding.of_fields(
        acl.restype.value,
        acl.name,
        acl.resource_pattern_type.value,
        acl.principal,
        acl.host,
        acl.operation.value,
        acl.permission_type.value,
    )
