"""ACLs."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from cordwood.errors import CordwoodError
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from cordwood.security import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    acl_fault,
)
from cordwood.server.answers import code_of, message_of, shortened
from cordwood.server.connections import Exchange
from cordwood.server.context import Context

_Number = TypeVar("_Number", bound=IntEnum)
_NO_AUTHORIZER = "no authorizer is configured: there is no access control"


async def describe_acls(context: Context, exchange: Exchange) -> DescribeAclsResponse:
    """Return the ACLs that the filter selects, by resource."""
    if context.acls is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
    wanted = _filter(exchange.request.body)
    if wanted.fault is not None:
        return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=wanted.fault)
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for acl in context.acls.matching(wanted):
        pattern = acl.resource_type, acl.resource_name, acl.pattern_type
        if pattern not in resources:
            resources[pattern] = DescribeAclsResource(*pattern, acls=[])
        rule = AclDescription(acl.principal, acl.host, acl.operation, acl.permission)
        resources[pattern].acls.append(rule)
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))


async def create_acls(context: Context, exchange: Exchange) -> CreateAclsResponse:
    """Create the valid ACLs with one sync. Without an authorizer each is refused: it would have no effect."""
    request: CreateAclsRequest = exchange.request.body
    if context.acls is None:
        refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
        return CreateAclsResponse(results=[refused] * len(request.creations))
    acls, asked = context.acls, [_binding(each) for each in request.creations]
    faults = [acl_fault(acl) for acl in asked]
    failure = None
    try:
        valid = [acl for acl, fault in zip(asked, faults, strict=True) if fault is None]
        await context.changes.call(lambda: acls.create(valid))
    except CordwoodError as error:
        failure = error
    return CreateAclsResponse(results=[_created(fault, failure) for fault in faults])


def _created(fault: str | None, failure: CordwoodError | None) -> AclCreationResult:
    if fault is not None:
        return AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message=shortened(fault))
    if failure is not None:
        return AclCreationResult(error_code=code_of(failure), error_message=message_of(failure))
    return AclCreationResult(error_message=None)


async def delete_acls(context: Context, exchange: Exchange) -> DeleteAclsResponse:
    """Delete the ACLs that any of the filters selects, with one sync."""
    request: DeleteAclsRequest = exchange.request.body
    if context.acls is None:
        refused = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
        return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
    acls, asked = context.acls, [_filter(each) for each in request.filters]
    valid = [wanted for wanted in asked if wanted.fault is None]
    try:
        deleted = iter(await context.changes.call(lambda: acls.delete(valid)))
    except CordwoodError as error:
        failed = DeleteAclsFilterResult(error_code=code_of(error), error_message=message_of(error))
        return DeleteAclsResponse(filter_results=[failed] * len(request.filters))
    results = []
    for wanted in asked:
        if wanted.fault is not None:
            code, message = ErrorCode.INVALID_REQUEST, wanted.fault
            results.append(DeleteAclsFilterResult(error_code=code, error_message=message))
        else:
            gone = [DeleteAclsMatchingAcl(ErrorCode.NONE, None, *acl) for acl in next(deleted)]
            results.append(DeleteAclsFilterResult(error_message=None, matching_acls=gone))
    return DeleteAclsResponse(filter_results=results)


def _known(kind: type[_Number], number: int) -> _Number:
    """Return the member of *kind* with this number; its first, which is the unknown one, if it has none."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def _filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        _known(ResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        _known(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        _known(Operation, asked.operation),
        _known(Permission, asked.permission_type),
    )


def _binding(asked: AclCreation) -> AclBinding:
    return AclBinding(
        _known(ResourceType, asked.resource_type),
        asked.resource_name,
        _known(PatternType, asked.resource_pattern_type),
        asked.principal,
        asked.host,
        _known(Operation, asked.operation),
        _known(Permission, asked.permission_type),
    )
