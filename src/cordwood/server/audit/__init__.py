"""The audit log: who did what with which answer, as records of a chained topic. docs/audit.md has them."""

from cordwood.server.audit.audit import Audit
from cordwood.server.audit.logins import LoginWatch
from cordwood.server.audit.opening import check_audit, open_audit
from cordwood.server.audit.watching import RequestWatch

__all__ = ["Audit", "LoginWatch", "RequestWatch", "check_audit", "open_audit"]
