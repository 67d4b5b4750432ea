"""Security on the server: who a client is and what it may do, for connections and handlers."""

from cordwood.server.security.authentication import Authentication, AuthenticationResult
from cordwood.server.security.doors import CertificateLogin, Doors
from cordwood.server.security.embedded_tls import EmbeddedTls, TlsFiles
from cordwood.server.security.exposure import check_exposure
from cordwood.server.security.fair_workers import FairWorkers
from cordwood.server.security.rights import Authorization, Rights
from cordwood.server.security.sasl_service import (
    AdmittedClient,
    PrincipalService,
    SaslService,
)
from cordwood.server.security.shared_acls import SharedAcls
from cordwood.server.security.stored_acls import StoredAcls, load_acls
from cordwood.server.security.stored_users import (
    StoredUsers,
    UserKey,
    credential_of,
    ensure_decoys,
    ensure_users,
    entry_of,
    new_credential,
)

__all__ = [
    "AdmittedClient",
    "Authentication",
    "AuthenticationResult",
    "Authorization",
    "CertificateLogin",
    "Doors",
    "EmbeddedTls",
    "FairWorkers",
    "PrincipalService",
    "Rights",
    "SaslService",
    "SharedAcls",
    "StoredAcls",
    "StoredUsers",
    "TlsFiles",
    "UserKey",
    "check_exposure",
    "credential_of",
    "ensure_decoys",
    "ensure_users",
    "entry_of",
    "load_acls",
    "new_credential",
]
