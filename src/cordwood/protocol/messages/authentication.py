"""SASL, and the SCRAM credentials of users."""

from __future__ import annotations

from cordwood.protocol.schema import array, int8, int16, int32, int64, message, opaque, string


@message
class SaslHandshakeRequest:
    """Choose a mechanism. After version 0, tokens follow without a request around them."""

    mechanism: str = string("0+")


@message
class SaslHandshakeResponse:
    """Whether the mechanism is enabled, and the mechanisms that are."""

    error_code: int = int16("0+")
    mechanisms: list[str] = array(string, "0+")


@message
class SaslAuthenticateRequest:
    """A token of the mechanism."""

    auth_bytes: bytes = opaque("0+")


@message
class SaslAuthenticateResponse:
    """The server's token. A ``session_lifetime_ms`` of 0 means that the session does not end."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    auth_bytes: bytes = opaque("0+")
    session_lifetime_ms: int = int64("1+")


@message
class ScramCredentialDeletion:
    """A credential to delete."""

    name: str = string("0+")
    mechanism: int = int8("0+")


@message
class ScramCredentialUpsertion:
    """A credential to create or replace, from a password that the client has salted."""

    name: str = string("0+")
    mechanism: int = int8("0+")
    iterations: int = int32("0+")
    salt: bytes = opaque("0+")
    salted_password: bytes = opaque("0+")


@message
class AlterUserScramCredentialsRequest:
    """Change the SCRAM credentials of users."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion, "0+")
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion, "0+")


@message
class AlterUserScramCredentialsResult:
    """The result for one user."""

    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


@message
class AlterUserScramCredentialsResponse:
    """The result for each user."""

    throttle_time_ms: int = int32("0+")
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult, "0+")
