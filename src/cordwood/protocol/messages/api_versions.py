"""ApiVersions: a client's first request, the only one that may come in an unsupported version."""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, int16, int32, int64, message, string


@message
class ApiVersionsRequest:
    """Request the supported APIs."""

    client_software_name: str = string("3+")
    client_software_version: str = string("3+")


@message
class ApiVersion:
    """One API and its supported versions, both bounds included."""

    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


@message
class SupportedFeatureKey:
    """A feature of the cluster that this broker supports."""

    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


@message
class FinalizedFeatureKey:
    """An enabled feature of the cluster."""

    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


@message
class ApiVersionsResponse:
    """The supported APIs. With error 35 the response has version 0, for any version of the request."""

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array(ApiVersion, "0+")
    throttle_time_ms: int = int32("1+")
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0)
    finalized_features_epoch: int = int64("3+", default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2)
    zk_migration_ready: bool = boolean("3+", tag=3)
