"""Handlers of requests about security: ACLs, users, client quotas."""

from cordwood.server.handlers.security.acls import (
    create_acls,
    delete_acls,
    describe_acls,
)
from cordwood.server.handlers.security.quotas import alter_client_quotas, describe_client_quotas
from cordwood.server.handlers.security.users import (
    alter_user_scram_credentials,
    describe_user_scram_credentials,
    sasl_authenticate,
    sasl_handshake,
)

__all__ = [
    "alter_client_quotas",
    "alter_user_scram_credentials",
    "create_acls",
    "delete_acls",
    "describe_acls",
    "describe_client_quotas",
    "describe_user_scram_credentials",
    "sasl_authenticate",
    "sasl_handshake",
]
