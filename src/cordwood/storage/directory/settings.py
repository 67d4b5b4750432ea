"""The broker's settings of a data directory, and changing them at run time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from threading import RLock
from types import MappingProxyType

from cordwood.config import BrokerConfig, LayeredConfig, group_times, layered
from cordwood.disk import as_storage_error
from cordwood.storage.directory.partitions import DirectoryPartitions
from cordwood.storage.directory.topic_settings import TopicSettings, check_change, checked_config
from cordwood.storage.meta import BrokerSettingsEntry, Catalogue, GroupSettingsEntry, Lifecycle, check_shares

_NOTHING: Mapping[str, str] = MappingProxyType({})


class DirectorySettings:
    """The settings of the broker. Every method may be called from any thread.

    *static* are the settings of file and environment; ``warnings`` has a sentence for each setting that was
    stored at run time and cannot be applied any more.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        static: BrokerConfig,
        settings: TopicSettings,
        partitions: DirectoryPartitions,
        lifecycle: Lifecycle,
        guard: RLock,
        warnings: Sequence[str],
    ) -> None:
        self.warnings = list(warnings)
        self._catalogue = catalogue
        self._static = static
        self._settings = settings
        self._partitions = partitions
        self._lifecycle = lifecycle
        self._guard = guard

    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now."""
        return self._settings.broker

    @property
    def layers(self) -> LayeredConfig:
        """The settings as they are now, and where each comes from."""
        return self._settings.layers

    def alter(self, broker: str, settings: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Replace the settings that *broker*, or every broker under the empty name, was given at run time.

        They apply at once and are durable on return. With *validate_only* nothing changes.

        Raises:
            ConfigError: If a setting is unknown, cannot change at run time, is invalid, or contradicts the
                files of a topic. Nothing was changed.
            DiskFull: Nothing was changed.
        """
        with self._guard:
            self._lifecycle.check_open()
            stored = self._catalogue.contents.broker_settings
            layers = layered(self._static, {**stored, broker: settings})
            self._check_topics_follow(layers.config)
            if validate_only or stored.get(broker, {}) == dict(settings):
                return
            self._lifecycle.before_change()
            try:
                self._catalogue.add([BrokerSettingsEntry(broker, dict(settings))])
            except OSError as error:
                raise as_storage_error(error, "changing the settings of the broker") from error
            self._settings.layers = layers
            for entry in list(self._catalogue.contents.topics.values()):
                self._partitions.reconfigure(entry)

    def of_group(self, org: int, group: str) -> Mapping[str, str]:
        """Return the settings that a group of an org was given. Never blocks."""
        return self._catalogue.contents.group_settings.get((org, group), _NOTHING)

    def alter_group(
        self, org: int, group: str, settings: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Replace the settings of a group. Durable on return; with *validate_only* nothing changes.

        Raises:
            ConfigError: If a setting is unknown or its value is not allowed. Nothing was changed.
            QuotaExceeded: If too many groups of the org would have settings. Nothing was changed.
            DiskFull: Nothing was changed.
        """
        with self._guard:
            self._lifecycle.check_open()
            group_times(self._settings.broker, settings)
            stored = self._catalogue.contents.group_settings
            if validate_only or stored.get((org, group), {}) == dict(settings):
                return
            if settings and (org, group) not in stored:
                counts = Counter(owner for owner, _ in stored)
                check_shares("groups with settings of their own", counts, counts + Counter([org]))
            self._lifecycle.before_change()
            try:
                self._catalogue.add([GroupSettingsEntry(org, group, dict(settings))])
            except OSError as error:
                raise as_storage_error(error, "changing the settings of a group") from error

    def _check_topics_follow(self, config: BrokerConfig) -> None:
        """Refuse settings of the broker that contradict the files of a topic."""
        # Of very many topics most share a few sets of overrides.
        distinct = {tuple(entry.config.items()) for entry in self._catalogue.contents.topics.values()}
        for overrides in map(dict, distinct):
            check_change(self._settings.config_of(overrides), checked_config(overrides, config))
