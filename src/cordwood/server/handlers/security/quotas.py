"""Client quotas."""

from __future__ import annotations

from collections import Counter

from cordwood.errors import CordwoodError
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaAlterationResult,
    QuotaEntity,
    QuotaEntry,
    QuotaValue,
)
from cordwood.security import (
    CLIENT_ID,
    IP,
    USER,
    QuotaFilter,
    entity_fault,
    entity_of,
    limit_fault,
)
from cordwood.server.answers import code_of, message_of, shortened
from cordwood.server.connections import Exchange
from cordwood.server.context import Context

#: The match types of a filter component: an exact name, the default entity, any name.
_EXACT, _DEFAULT, _ANY = range(3)
_Error = tuple[ErrorCode, str]
_Identity = tuple[tuple[str, str | None], ...]


async def describe_client_quotas(context: Context, exchange: Exchange) -> DescribeClientQuotasResponse:
    """Return the entities that the filter selects, with their limits."""
    request: DescribeClientQuotasRequest = exchange.request.body
    problem = _problem(request)
    if problem is not None:
        code, message = problem
        return DescribeClientQuotasResponse(error_code=code, error_message=shortened(message), entries=None)
    wanted = QuotaFilter(
        {each.entity_type: each.match for each in request.components if each.match_type != _ANY},
        [each.entity_type for each in request.components if each.match_type == _ANY],
        request.strict,
    )
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            QuotaEntry(
                entity=[QuotaEntity(*part) for part in entity.parts().items()],
                values=[QuotaValue(*limit) for limit in limits.items()],
            )
            for entity, limits in context.client_quotas.limits.matching(wanted)
        ],
    )


def _problem(request: DescribeClientQuotasRequest) -> _Error | None:
    """Return Kafka's error code and a message for an invalid filter, or None."""
    named = Counter(component.entity_type for component in request.components)
    for component in request.components:
        kind, match_type = component.entity_type, component.match_type
        if kind not in (USER, CLIENT_ID, IP):
            code = ErrorCode.UNSUPPORTED_VERSION if kind else ErrorCode.INVALID_REQUEST
            return code, f"entity type {kind!r}: expected user, client-id or ip"
        if named[kind] > 1:
            return ErrorCode.INVALID_REQUEST, f"entity type {kind} is named more than once"
        if match_type not in (_EXACT, _DEFAULT, _ANY):
            return ErrorCode.INVALID_REQUEST, f"unknown match type {match_type}"
        if (match_type == _EXACT) != (component.match is not None):
            return ErrorCode.INVALID_REQUEST, f"match type {match_type} with the match {component.match!r}"
    if IP in named and len(named) > 1:
        return ErrorCode.INVALID_REQUEST, "entity type ip cannot be combined with another"
    return None


async def alter_client_quotas(context: Context, exchange: Exchange) -> AlterClientQuotasResponse:
    """Set and remove limits. An entity with an invalid change keeps everything, the others are changed."""
    request: AlterClientQuotasRequest = exchange.request.body
    named: dict[_Identity, list[QuotaAlteration]] = {}
    for entry in request.entries:
        named.setdefault(_identity(entry), []).append(entry)
    errors: dict[_Identity, _Error] = {}
    accepted: dict[_Identity, dict[str, float | None]] = {}
    for identity, entries in named.items():
        fault = "the entity is named more than once" if len(entries) > 1 else _fault(entries[0])
        if fault is not None:
            errors[identity] = ErrorCode.INVALID_REQUEST, fault
        else:
            accepted[identity] = {op.key: None if op.remove else op.value for op in entries[0].ops}
    if accepted and not request.validate_only:
        changes = {entity_of(dict(identity)): limits for identity, limits in accepted.items()}
        try:
            await context.client_quotas.alter(changes, context.changes.call)
        except CordwoodError as failure:
            errors.update(dict.fromkeys(accepted, (code_of(failure), message_of(failure) or "")))
    return AlterClientQuotasResponse(
        # An entity has one result, however often it is named.
        entries=[_result(entries[0], errors.get(identity)) for identity, entries in named.items()]
    )


def _identity(entry: QuotaAlteration) -> _Identity:
    """Return the types and names of an entity, in an order that does not depend on that of the request."""
    parts = [(part.entity_type, part.entity_name) for part in entry.entity]
    return tuple(parts if len(parts) < 2 else sorted(parts, key=repr))


def _fault(entry: QuotaAlteration) -> str | None:
    """Return what is wrong with the change of an entity that is named once, or None."""
    for names in ([part.entity_type for part in entry.entity], [op.key for op in entry.ops]):
        if len(set(names)) < len(names):
            return f"{Counter(names).most_common(1)[0][0]!r} is named more than once"
    faults = (limit_fault(op.key, op.value) for op in entry.ops if not op.remove)
    return entity_fault(dict(_identity(entry))) or next(filter(None, faults), None)


def _result(entry: QuotaAlteration, error: _Error | None) -> QuotaAlterationResult:
    if error is None:
        return QuotaAlterationResult(error_message=None, entity=entry.entity)
    code, message = error
    return QuotaAlterationResult(error_code=code, error_message=shortened(message), entity=entry.entity)
