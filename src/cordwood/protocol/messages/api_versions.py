"""ApiVersions: the first thing a client asks, and the one request it may send at a version unknown here."""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, int16, int32, int64, message, string


@message
class ApiVersionsRequest:
    """Ask which APIs are spoken."""

    client_software_name: str = string("3+")
    client_software_version: str = string("3+")


@message
class ApiVersion:
    """One API and the versions of it that are spoken, both bounds included."""

    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


@message
class SupportedFeatureKey:
    """A feature of the cluster that this broker can run."""

    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


@message
class FinalizedFeatureKey:
    """A feature of the cluster that is switched on."""

    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


@message
class ApiVersionsResponse:
    """The APIs spoken here. At error 35 it is version 0, whatever the request was."""

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array(ApiVersion, "0+")
    throttle_time_ms: int = int32("1+")
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0)
    finalized_features_epoch: int = int64("3+", default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2)
    zk_migration_ready: bool = boolean("3+", tag=3)
