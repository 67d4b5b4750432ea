"""Audited servers: their settings, requests that change something, and the records of the audit topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cordwood
from cordwood import Broker
from cordwood.errors import CordwoodError
from cordwood.protocol.messages.authentication import ScramCredentialUpsertion
from cordwood.protocol.messages.configs import IncrementalAlterableConfig, IncrementalAlterConfigsResource
from cordwood.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from cordwood.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from cordwood.security import (
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    ScramMechanism,
    salted,
)
from support.patience import until
from support.sasl import SaslClient

TOPIC = "__audit"
AUDITED = {"cordwood.audit.topic": TOPIC}
ANYONE = "User:ANONYMOUS"
AUTHORIZED = {**AUDITED, "authorizer.class.name": "cordwood", "super.users": f"{ANYONE};User:root"}
PASSWORDS = {"alice": "password-of-alice", "root": "password-of-root"}
LOGINS = {
    **AUDITED,
    "listener.security.protocol.map": "OPEN:PLAINTEXT,USERS:SASL_PLAINTEXT,TENANT:PLAINTEXT",
    "cordwood.listener.TENANT.org": "7",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "authorizer.class.name": "cordwood",
    "super.users": f"{ANYONE};User:root",
    "connection.failed.authentication.delay.ms": "1",
}
LISTEN = "OPEN://localhost:0,USERS://localhost:0,TENANT://localhost:0"
TOPIC_KIND, BROKER_KIND = 2, 4
ACL = AclBinding(
    ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)
SALT = b"salt of a client"


def logged_in(broker: Broker, name: str = "alice") -> SaslClient:
    client = SaslClient(broker.addresses["USERS"])
    client.log_in(name, PASSWORDS[name])
    return client


def creation(name: str, *, partitions: int = 1, **settings: str) -> CreatableTopic:
    configs = [CreatableTopicConfig(name.replace("_", "."), text) for name, text in settings.items()]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)


def step(kind: int, resource: str, name: str, value: str | None, how: int = 0) -> Any:
    change = IncrementalAlterableConfig(name=name, config_operation=how, value=value)
    return IncrementalAlterConfigsResource(kind, resource, [change])


def deletion(name: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])


def offsets_of(group: str, topic: str) -> OffsetDeleteRequest:
    partitions = [OffsetDeleteRequestPartition(0)]
    return OffsetDeleteRequest(group, [OffsetDeleteRequestTopic(topic, partitions)])


def until_offset(name: str, offset: int) -> DeleteRecordsRequest:
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name, [DeleteRecordsPartition(0, offset)])])


def credential(name: str, password: str) -> ScramCredentialUpsertion:
    key = salted(ScramMechanism.SHA_256, password, SALT, 4096)
    return ScramCredentialUpsertion(name, 1, 4096, SALT, key)


def audit_rows(data: Path, topic: str = TOPIC) -> list[dict[str, Any]]:
    """Return the records of the audit topic of a directory, which a server may hold."""
    with cordwood.open(data, read_only=True) as log:
        return [json.loads(record.value or b"") for record in log.topic(topic).read()]


def of_clients(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records that are not about the broker itself."""
    return [row for row in rows if row["event"] != "broker"]


def until_recorded(data: Path, count: int) -> list[dict[str, Any]]:
    """Return the records of clients, once there are *count*."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        try:
            found[:] = of_clients(audit_rows(data))
        except CordwoodError:
            return False
        return len(found) >= count

    until(there, f"{count} records of the audit log")
    return found
