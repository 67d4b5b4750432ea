"""Client quotas: limits of users, client ids and addresses."""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, float64, int8, int16, int32, message, string


@message
class QuotaComponent:
    """A component of a filter: an entity type (user, client id or address) and its match."""

    entity_type: str = string("0+")
    match_type: int = int8("0+")
    match: str | None = string("0+", nullable="0+")


@message
class DescribeClientQuotasRequest:
    """Request the quotas that match all components and, with ``strict``, have no others."""

    components: list[QuotaComponent] = array(QuotaComponent, "0+")
    strict: bool = boolean("0+")


@message
class QuotaEntity:
    """A component of a quota's entity; a null name means the default entity."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


@message
class QuotaValue:
    """One limit."""

    key: str = string("0+")
    value: float = float64("0+")


@message
class QuotaEntry:
    """An entity and its limits."""

    entity: list[QuotaEntity] = array(QuotaEntity, "0+")
    values: list[QuotaValue] = array(QuotaValue, "0+")


@message
class DescribeClientQuotasResponse:
    """The matching quotas; null with an error."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entries: list[QuotaEntry] | None = array(QuotaEntry, "0+", nullable="0+")


@message
class QuotaOperation:
    """A limit to set, or to remove."""

    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")


@message
class QuotaAlteration:
    """An entity and the changes of its limits."""

    entity: list[QuotaEntity] = array(QuotaEntity, "0+")
    ops: list[QuotaOperation] = array(QuotaOperation, "0+")


@message
class AlterClientQuotasRequest:
    """Change the limits of entities, or only validate the request."""

    entries: list[QuotaAlteration] = array(QuotaAlteration, "0+")
    validate_only: bool = boolean("0+")


@message
class QuotaAlterationResult:
    """The result for one entity."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entity: list[QuotaEntity] = array(QuotaEntity, "0+")


@message
class AlterClientQuotasResponse:
    """The result for each entity."""

    throttle_time_ms: int = int32("0+")
    entries: list[QuotaAlterationResult] = array(QuotaAlterationResult, "0+")
