"""Resources and the operations on them, with Kafka's numbers."""

from __future__ import annotations

from enum import IntEnum

#: The name of the only resource of type ``CLUSTER``.
CLUSTER_NAME = "kafka-cluster"


class ResourceType(IntEnum):
    """The kind of a resource that is protected. ``ANY`` occurs in filters only."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name in an ACL is compared. ``ANY`` and ``MATCH`` occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """An operation on a resource. ``ANY`` is for filters; ``ALL`` in an ACL covers all others."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """What an ACL says about an operation. ``ANY`` occurs in filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3
