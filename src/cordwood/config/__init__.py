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
from cordwood.config.group import GROUP_SETTINGS, bounded_group_times, default_of_group, group_times
from cordwood.config.kinds import LONG_MAX, SyncPolicy, text_of
from cordwood.config.listeners import Endpoint, Endpoints, SecurityProtocol
from cordwood.config.loading import (
    BROKER_SETTINGS,
    CREATION_SETTINGS,
    FIXED_SETTINGS,
    LISTENER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    OrgQuota,
    Setting,
    TopicConfig,
    load_broker_config,
    store_without_tls,
    topic_config,
)
from cordwood.config.per_listener import METRICS, ListenerConfig, listener_name
from cordwood.config.properties import parse_properties
from cordwood.config.setting import Secret
from cordwood.config.topic import TimestampOrder

__all__ = [
    "BROKER_SETTINGS",
    "CREATION_SETTINGS",
    "DYNAMIC_SETTINGS",
    "EVERY_BROKER",
    "FIXED_SETTINGS",
    "GROUP_SETTINGS",
    "LISTENER_SETTINGS",
    "LONG_MAX",
    "METRICS",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "Endpoint",
    "Endpoints",
    "LayeredConfig",
    "ListenerConfig",
    "OrgQuota",
    "Secret",
    "SecurityProtocol",
    "Setting",
    "SyncPolicy",
    "TimestampOrder",
    "TopicConfig",
    "bounded_group_times",
    "default_of_group",
    "group_times",
    "layered",
    "layered_as_far_as_possible",
    "listener_name",
    "load_broker_config",
    "only_static",
    "parse_properties",
    "quota_name",
    "quota_of",
    "store_without_tls",
    "text_of",
    "topic_config",
]
