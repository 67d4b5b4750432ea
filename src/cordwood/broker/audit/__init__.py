"""The records of the audit log: what they say, how they are written and how they are read."""

from cordwood.broker.audit.event import (
    AUDIT_PREFIX,
    DETAILS_MAX,
    TEXT_MAX,
    AuditEvent,
    AuditKind,
    AuditOutcome,
    AuditRow,
)
from cordwood.broker.audit.reading import AuditFilter, AuditRecord, UnreadableAuditRecord, read_audit

__all__ = [
    "AUDIT_PREFIX",
    "DETAILS_MAX",
    "TEXT_MAX",
    "AuditEvent",
    "AuditFilter",
    "AuditKind",
    "AuditOutcome",
    "AuditRecord",
    "AuditRow",
    "UnreadableAuditRecord",
    "read_audit",
]
