"""The backend that changes a data directory, and records that in the audit topics of the directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cordwood import tenancy
from cordwood.broker.audit import AUDIT_PREFIX, AuditEvent, AuditKind, AuditOutcome, AuditRow
from cordwood.cli.backends.backend import ProducedRow
from cordwood.cli.backends.files import FilesBackend
from cordwood.embedded import Log
from cordwood.host import SystemClock, process
from cordwood.security import AclBinding, AclFilter, ScramMechanism

_CLIENT_ID = "cordwood"


class AuditedFiles(FilesBackend):
    """A data directory whose audit topics, if it has any, get a record of each change of a command.

    The record has the same words as that of a request to a server, the user of the operating system as its
    principal, and ``offline`` in its details. It follows the change: what fails is not recorded.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self._files_log = log

    def _note(self, api: str, kind: str, name: str, org: int = 0, **details: Any) -> None:
        topics = [topic for topic in self._files_log.topics if topic.startswith(AUDIT_PREFIX)]
        event = AuditEvent(
            event=AuditKind.CHANGE,
            outcome=AuditOutcome.OK,
            api=api,
            org=org,
            principal=f"OS:{process.user()}",
            client_id=_CLIENT_ID,
            resource_type=kind,
            resource=name,
            details={"offline": True, **details},
        )
        row = AuditRow(happened=event.bounded(), time_ms=SystemClock().now_ms())
        for topic in topics:
            self._files_log.topic(topic).append(row.encode(0), partition=0)

    def _note_topic(self, api: str, topic: str, **details: Any) -> None:
        name, org = tenancy.split(topic)
        self._note(api, "topic", name, org, **details)

    # --- topics -----------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Create a topic."""
        made = super().create(topic, partitions, config)
        self._note_topic("CreateTopics", topic, partitions=made, settings=dict(config))
        return made

    def alter(
        self, topic: str, partitions: int | None, config: Mapping[str, str], unset: Sequence[str]
    ) -> None:
        """Change a topic."""
        super().alter(topic, partitions, config, unset)
        if partitions is not None:
            self._note_topic("CreatePartitions", topic, partitions=partitions)
        if config or unset:
            steps = {"set": dict(config), "delete": dict.fromkeys(unset)}
            given = {step: settings for step, settings in steps.items() if settings}
            self._note_topic("IncrementalAlterConfigs", topic, **given)

    def roll(self, topic: str, partition: int) -> None:
        """Seal the active segment of a partition."""
        super().roll(topic, partition)
        operation = {"type": "roll", "partition": partition}
        self._note_topic("IncrementalAlterConfigs", topic, operation=operation)

    def truncate(self, topic: str, partition: int, end_offset: int, *, force: bool, dry_run: bool) -> None:
        """Truncate a partition."""
        super().truncate(topic, partition, end_offset, force=force, dry_run=dry_run)
        if not dry_run:
            operation = {"type": "truncate", "partition": partition, "end_offset": end_offset, "force": force}
            self._note_topic("IncrementalAlterConfigs", topic, operation=operation)

    def delete(self, topic: str) -> None:
        """Delete a topic and its committed offsets."""
        topic_id = self._files_log.entry(topic).id.replace("-", "")
        super().delete(topic)
        self._note_topic("DeleteTopics", topic, topic_id=topic_id)

    def append(self, topic: str, rows: Sequence[ProducedRow], partition: int | None) -> int:
        """Append, which creates a topic that is missing."""
        is_there = topic in self._files_log.topics
        count = super().append(topic, rows, partition)
        if not is_there:
            self._note_topic("CreateTopics", topic, automatically=True)
        return count

    # --- groups, ACLs, users ----------------------------------------------------------------------

    def delete_group(self, name: str) -> None:
        """Delete a group and its committed offsets."""
        super().delete_group(name)
        shown, org = tenancy.split(name)
        self._note("DeleteGroups", "group", shown, org)

    def create_acls(self, acls: Sequence[AclBinding], org: int) -> None:
        """Add ACLs to the catalogue."""
        super().create_acls(acls, org)
        for acl in acls:
            self._note_acl("CreateAcls", acl, org)

    def delete_acls(self, wanted: Sequence[AclFilter], org: int) -> list[AclBinding]:
        """Remove ACLs from the catalogue."""
        found = super().delete_acls(wanted, org)
        for acl in found:
            self._note_acl("DeleteAcls", acl, org)
        return found

    def _note_acl(self, api: str, acl: AclBinding, org: int) -> None:
        described = {
            "pattern": acl.pattern_type.name.lower(),
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation.name.lower(),
            "permission": acl.permission.name.lower(),
        }
        self._note(api, acl.resource_type.name.lower(), acl.resource_name, org, acl=described)

    def set_user(
        self, name: str, password: str, mechanisms: Sequence[ScramMechanism], iterations: int
    ) -> None:
        """Set credentials in the catalogue."""
        super().set_user(name, password, mechanisms, iterations)
        steps = [{"step": "set", "mechanism": each.title, "iterations": iterations} for each in mechanisms]
        self._note("AlterUserScramCredentials", "user", name, credentials=steps)

    def remove_user(self, name: str, mechanisms: Sequence[ScramMechanism]) -> list[ScramMechanism]:
        """Remove credentials from the catalogue."""
        removed = super().remove_user(name, mechanisms)
        steps = [{"step": "delete", "mechanism": each.title} for each in removed]
        self._note("AlterUserScramCredentials", "user", name, credentials=steps)
        return removed
