"""Logins, by SASL and by certificate, as events of the audit log."""

from __future__ import annotations

from cordwood.config import BrokerConfig
from cordwood.protocol import ErrorCode
from cordwood.security import Principal
from cordwood.server.audit.audit import Audit
from cordwood.server.audit.watching import api_name
from cordwood.server.security import AuthenticationResult, CertificateLogin

#: What stands for an error code where TLS fails: Kafka has none for it.
_NO_HANDSHAKE, _NO_TENANT = "SSL_HANDSHAKE_FAILED", "NO_TENANT"


class LoginWatch:
    """Notes who logged in and who failed to. On the loop only."""

    def __init__(self, audit: Audit, config: BrokerConfig) -> None:
        self._audit = audit
        self._config = config

    def note(self, result: AuthenticationResult) -> None:
        """Note an attempt by SASL."""
        org = self._config.org_of(result.listener)
        if result.code is ErrorCode.NONE and result.name is not None:
            by_rule = self._config.tenant_rules.org_of(result.name)
            org = org if by_rule is None else by_rule
        self._audit.note_authentication(
            org=org,
            principal="" if result.name is None else str(Principal("User", result.name)),
            host=result.peer,
            listener=result.listener,
            api=api_name(result.api_key),
            mechanism=result.mechanism,
            client_id=result.client_id,
            error=None if result.code is ErrorCode.NONE else result.code.name,
        )

    def note_certificate(self, login: CertificateLogin) -> None:
        """Note an attempt by TLS."""
        org, error = self._config.org_of(login.listener), None
        if login.principal is None:
            error = _NO_HANDSHAKE
        else:
            try:
                by_rule = self._config.tenant_rules.org_of(login.principal.name)
                org = org if by_rule is None else by_rule
            except ValueError:
                error = _NO_TENANT
        self._audit.note_authentication(
            org=org,
            principal="" if login.principal is None else str(login.principal),
            host=login.peer,
            listener=login.listener,
            api="TLS",
            mechanism="TLS",
            error=error,
        )
