"""Access control, SCRAM users and client quotas: answered like a Kafka broker without them."""

from __future__ import annotations

from collections import Counter

from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from cordwood.server.answers import shortened
from cordwood.server.connections import Exchange
from cordwood.server.context import Context

_NO_AUTHORIZER = "no authorizer is configured: there is no access control"
_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
#: The match types of a filter component: an exact name, the default entity, any name.
_EXACT, _DEFAULT, _ANY = range(3)


async def describe_acls(context: Context, exchange: Exchange) -> DescribeAclsResponse:
    """Answer that there is no access control."""
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)


async def create_acls(context: Context, exchange: Exchange) -> CreateAclsResponse:
    """Refuse each entry: it would have no effect."""
    request: CreateAclsRequest = exchange.request.body
    refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
    return CreateAclsResponse(results=[refused] * len(request.creations))


async def delete_acls(context: Context, exchange: Exchange) -> DeleteAclsResponse:
    """Refuse each filter."""
    request: DeleteAclsRequest = exchange.request.body
    refused = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))


async def describe_user_scram_credentials(
    context: Context, exchange: Exchange
) -> DescribeUserScramCredentialsResponse:
    """Answer for each named user that it does not exist."""
    request: DescribeUserScramCredentialsRequest = exchange.request.body
    named = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(
        error_message=None, results=[_user(name, count) for name, count in named.items()]
    )


def _user(name: str, count: int) -> DescribeUserScramCredentialsResult:
    code, message = ErrorCode.RESOURCE_NOT_FOUND, f"user {name} does not exist"
    if count > 1:
        code, message = ErrorCode.DUPLICATE_RESOURCE, f"user {name} is named more than once"
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=shortened(message))


async def describe_client_quotas(context: Context, exchange: Exchange) -> DescribeClientQuotasResponse:
    """Answer that no user, client id or address has a quota; quotas of orgs are not reported here."""
    request: DescribeClientQuotasRequest = exchange.request.body
    problem = _problem(request)
    if problem is None:
        return DescribeClientQuotasResponse(error_message=None)
    code, message = problem
    return DescribeClientQuotasResponse(error_code=code, error_message=shortened(message), entries=None)


def _problem(request: DescribeClientQuotasRequest) -> tuple[ErrorCode, str] | None:
    """Return Kafka's error code and a message for an invalid filter, or None."""
    named = Counter(component.entity_type for component in request.components)
    for component in request.components:
        kind, match_type = component.entity_type, component.match_type
        if kind not in (_USER, _CLIENT_ID, _IP):
            code = ErrorCode.UNSUPPORTED_VERSION if kind else ErrorCode.INVALID_REQUEST
            return code, f"entity type {kind!r}: expected user, client-id or ip"
        if named[kind] > 1:
            return ErrorCode.INVALID_REQUEST, f"entity type {kind} is named more than once"
        if match_type not in (_EXACT, _DEFAULT, _ANY):
            return ErrorCode.INVALID_REQUEST, f"unknown match type {match_type}"
        if (match_type == _EXACT) != (component.match is not None):
            return ErrorCode.INVALID_REQUEST, f"match type {match_type} with the match {component.match!r}"
    if _IP in named and len(named) > 1:
        return ErrorCode.INVALID_REQUEST, "entity type ip cannot be combined with another"
    return None
