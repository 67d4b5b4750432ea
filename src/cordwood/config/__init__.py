"""Settings: kinds, defaults, bounds, loading, and Kafka's names."""

from cordwood.config.dynamic import (
    DYNAMIC_SETTINGS,
    EVERY_BROKER,
    LayeredConfig,
    layered,
    layered_as_far_as_possible,
    only_static,
    quota_name,
    quota_of,
)
from cordwood.config.group import GROUP_SETTINGS
from cordwood.config.kinds import LONG_MAX, Endpoint, Endpoints, SyncPolicy, text_of
from cordwood.config.loading import (
    BROKER_SETTINGS,
    CREATION_SETTINGS,
    FIXED_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    OrgQuota,
    Setting,
    TopicConfig,
    load_broker_config,
    topic_config,
)
from cordwood.config.properties import parse_properties

__all__ = [
    "BROKER_SETTINGS",
    "CREATION_SETTINGS",
    "DYNAMIC_SETTINGS",
    "EVERY_BROKER",
    "FIXED_SETTINGS",
    "GROUP_SETTINGS",
    "LONG_MAX",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "Endpoint",
    "Endpoints",
    "LayeredConfig",
    "OrgQuota",
    "Setting",
    "SyncPolicy",
    "TopicConfig",
    "layered",
    "layered_as_far_as_possible",
    "load_broker_config",
    "only_static",
    "parse_properties",
    "quota_name",
    "quota_of",
    "text_of",
    "topic_config",
]
