"""SCRAM users: listed, created, changed and deleted; and SASL where it is not expected."""

from __future__ import annotations

from collections import Counter

from cordwood.errors import CordwoodError
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from cordwood.security import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    ScramUsers,
    credential_of_salted,
)
from cordwood.server.answers import code_of, message_of, shortened
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.security import UserKey

_NAME_MAX = 1000
_SALT_BYTES_MAX = 256
_Error = tuple[ErrorCode, str]


async def sasl_handshake(context: Context, exchange: Exchange) -> SaslHandshakeResponse:
    """Answer that clients of this listener do not authenticate by SASL."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


async def sasl_authenticate(context: Context, exchange: Exchange) -> SaslAuthenticateResponse:
    """Answer that clients of this listener do not authenticate by SASL."""
    message = "clients of this listener do not authenticate by SASL"
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=message)


async def describe_user_scram_credentials(
    context: Context, exchange: Exchange
) -> DescribeUserScramCredentialsResponse:
    """List mechanisms and iterations of the requested users, or of all; orgs other than 0 have no users."""
    request: DescribeUserScramCredentialsRequest = exchange.request.body
    users = None if context.administration is None else context.administration.users.found
    named = Counter(user.name for user in request.users or ())
    if not named and users is not None:
        named = Counter(users.names())
    results = [_described(users, name, count) for name, count in named.items()]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _described(users: ScramUsers | None, name: str, count: int) -> DescribeUserScramCredentialsResult:
    credentials = {} if users is None else users.credentials(name)
    infos = [
        CredentialInfo(mechanism=mechanism.value, iterations=credential.iterations)
        for mechanism, credential in sorted(credentials.items(), key=lambda item: item[0].value)
    ]
    code, message = ErrorCode.NONE, None
    if count > 1:
        code, message, infos = ErrorCode.DUPLICATE_RESOURCE, f"user {name} is named more than once", []
    elif not infos:
        code, message = ErrorCode.RESOURCE_NOT_FOUND, f"user {name} does not exist"
    return DescribeUserScramCredentialsResult(
        user=name,
        error_code=code,
        error_message=None if message is None else shortened(message),
        credential_infos=infos,
    )


async def alter_user_scram_credentials(
    context: Context, exchange: Exchange
) -> AlterUserScramCredentialsResponse:
    """Set and delete credentials. A user with an invalid change keeps everything, the others are changed."""
    request: AlterUserScramCredentialsRequest = exchange.request.body
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [
        *request.deletions,
        *request.upsertions,
    ]
    administration = context.administration
    if administration is None:
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "users are changed by clients of org 0"
        return _response({change.name: refusal for change in changes})
    users = administration.users
    results: dict[str, _Error | None] = {}
    accepted: dict[str, tuple[UserKey, ScramCredential | None]] = {}
    for change in changes:
        error = results.get(change.name)
        if error is None:
            if change.name in accepted:
                error = ErrorCode.DUPLICATE_RESOURCE, "a user can be altered only once in a request"
            else:
                error = _fault(change, users.found)
        results[change.name] = error
        if error is not None:
            accepted.pop(change.name, None)
        else:
            accepted[change.name] = _change_of(change)
    if accepted:
        try:
            await context.changes.call(lambda: users.alter(dict(accepted.values())))
        except CordwoodError as failure:
            results.update(dict.fromkeys(accepted, (code_of(failure), message_of(failure) or "")))
    return _response(results)


def _fault(change: ScramCredentialDeletion | ScramCredentialUpsertion, users: ScramUsers) -> _Error | None:
    """Return Kafka's error code and a message for an invalid change, or None."""
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    if not 1 <= len(change.name) <= _NAME_MAX:
        return unacceptable, f"the name of a user has 1 to {_NAME_MAX} characters"
    if change.mechanism not in {each.value for each in ScramMechanism}:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"unknown SCRAM mechanism {change.mechanism}"
    mechanism = ScramMechanism(change.mechanism)
    if isinstance(change, ScramCredentialDeletion):
        if mechanism in users.credentials(change.name):
            return None
        return ErrorCode.RESOURCE_NOT_FOUND, f"the user has no credential for {mechanism.title}"
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        return unacceptable, f"the iterations are not from {ITERATIONS_MIN} to {ITERATIONS_MAX}"
    if not 1 <= len(change.salt) <= _SALT_BYTES_MAX:
        return unacceptable, f"the salt does not have 1 to {_SALT_BYTES_MAX} bytes"
    if len(change.salted_password) != mechanism.size:
        return unacceptable, f"the salted password does not have {mechanism.size} bytes"
    return None


def _change_of(
    change: ScramCredentialDeletion | ScramCredentialUpsertion,
) -> tuple[UserKey, ScramCredential | None]:
    mechanism = ScramMechanism(change.mechanism)
    key = UserKey(change.name, mechanism)
    if isinstance(change, ScramCredentialDeletion):
        return key, None
    salt, salted_password = bytes(change.salt), bytes(change.salted_password)
    return key, credential_of_salted(mechanism, salt, change.iterations, salted_password)


def _response(results: dict[str, _Error | None]) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=name,
                error_code=ErrorCode.NONE if error is None else error[0],
                error_message=None if error is None else shortened(error[1]),
            )
            for name, error in results.items()
        ]
    )
