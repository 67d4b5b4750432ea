"""The settings of a topic: those it has of its own, on top of the broker's settings in force."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.config import (
    FIXED_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    LayeredConfig,
    TopicConfig,
    text_of,
    topic_config,
)
from cordwood.errors import InvalidSetting
from cordwood.formats import EVERY_FORMAT
from cordwood.storage.log import UNCOMPRESSED, codec_of


def check_format(config: TopicConfig) -> None:
    """Refuse settings that contradict the record format of a topic.

    Raises:
        InvalidSetting: If there is one.
    """
    if "compact" in config.cleanup_policy and not EVERY_FORMAT[config.format].holds.keys:
        expected = f"delete: records of format {config.format} have no keys"
        raise InvalidSetting("cleanup.policy", config.cleanup_policy, expected)
    named = "cordwood.timestamp.precision" in config.explicit and config.timestamp_precision == "us"
    if named and not EVERY_FORMAT[config.format].holds.microseconds:
        expected = f"ms: records of format {config.format} have milliseconds"
        raise InvalidSetting("cordwood.timestamp.precision", config.timestamp_precision, expected)
    # A broker's default compression is ignored by topics whose format cannot compress.
    compresses = "compression.type" in config.explicit and codec_of(config) not in (None, UNCOMPRESSED)
    if compresses and EVERY_FORMAT[config.format].record_per_frame:
        expected = f"producer or uncompressed: records of format {config.format} are not compressed"
        raise InvalidSetting("compression.type", config.compression_type, expected)


def check_change(before: TopicConfig, after: TopicConfig) -> None:
    """Refuse a change of settings that contradicts the files of a topic.

    Raises:
        InvalidSetting: If there is one.
    """
    for name in FIXED_SETTINGS:
        attribute = TOPIC_SETTINGS[name].attribute
        if getattr(before, attribute) != getattr(after, attribute):
            kept = text_of(getattr(before, attribute))
            raise InvalidSetting(name, text_of(getattr(after, attribute)), f"{kept}: it cannot be changed")
    if after.stored_bytes_max < before.stored_bytes_max:
        # Batches of the old size may be stored, and reading would refuse them.
        expected = f"no less than {before.max_message_bytes}, what it was"
        raise InvalidSetting("max.message.bytes", after.max_message_bytes, expected)


def checked_config(overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
    """Return the settings of a topic that sets *overrides* itself, under the settings of *broker*.

    Raises:
        ConfigError: If a setting is unknown, its value is invalid, or it contradicts the format.
    """
    config = topic_config(overrides, broker)
    check_format(config)
    return config


class TopicSettings:
    """Computes the settings of topics from the broker's settings in force. From any thread."""

    def __init__(self, layers: LayeredConfig) -> None:
        #: The settings of the broker, and where each comes from. Replaced whole when they change.
        self.layers = layers

    @property
    def broker(self) -> BrokerConfig:
        """The settings of the broker, or of the embedded log, as they are now."""
        return self.layers.config

    def config_of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the settings of a topic that sets *overrides* itself. Raises as `checked_config`."""
        return checked_config(overrides, self.layers.config)
