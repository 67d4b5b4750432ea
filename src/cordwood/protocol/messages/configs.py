"""Settings of topics and brokers: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

``resource_type`` is 2 for a topic and 4 for a broker. ``config_source`` is the source of a value: 1 the
topic itself, 2 and 3 run-time settings of brokers, 4 the broker's file, 5 the default.
"""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, int8, int16, int32, message, string


@message
class DescribeConfigsResource:
    """A topic or broker, and the requested settings; null means all."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configuration_keys: list[str] | None = array(string, "0+", nullable="0+")


@message
class DescribeConfigsRequest:
    """Request settings."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, "0+")
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


@message
class DescribeConfigsSynonym:
    """One source of a value; the source with the highest precedence is first."""

    name: str = string("1+")
    value: str | None = string("1+", nullable="0+")
    source: int = int8("1+")


@message
class DescribeConfigsResourceResult:
    """A setting, its value and its source."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")
    read_only: bool = boolean("0+")
    config_source: int = int8("1+", default=-1)
    is_sensitive: bool = boolean("0+")
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+")
    config_type: int = int8("3+")
    documentation: str | None = string("3+", nullable="0+")


@message
class DescribeConfigsResult:
    """The settings of one topic or broker."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, "0+")


@message
class DescribeConfigsResponse:
    """The requested settings."""

    throttle_time_ms: int = int32("0+")
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, "0+")


@message
class AlterableConfig:
    """A setting and its new value."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


@message
class AlterConfigsResource:
    """All own settings of a topic or broker."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


@message
class AlterConfigsRequest:
    """Replace all settings; settings that are not named get their defaults."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")


@message
class AlterConfigsResourceResponse:
    """The result for one topic or broker."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")


@message
class AlterConfigsResponse:
    """The result for each topic or broker."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")


@message
class IncrementalAlterableConfig:
    """A change of one setting: 0 sets it, 1 deletes it, 2 appends to a list, 3 removes from a list."""

    name: str = string("0+")
    config_operation: int = int8("0+")
    value: str | None = string("0+", nullable="0+")


@message
class IncrementalAlterConfigsResource:
    """The changes to one topic or broker."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[IncrementalAlterableConfig] = array(IncrementalAlterableConfig, "0+")


@message
class IncrementalAlterConfigsRequest:
    """Change single settings; settings that are not named are kept."""

    resources: list[IncrementalAlterConfigsResource] = array(IncrementalAlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")


@message
class IncrementalAlterConfigsResponse:
    """The result for each topic or broker."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")
