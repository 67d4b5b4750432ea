"""The interface of a partition that is read beside its writer."""

from __future__ import annotations

from typing import Protocol

from cordwood.config import TopicConfig
from cordwood.storage.log import Partition, Published
from cordwood.storage.maintenance import Planned


class PublishedPartition(Partition, Protocol):
    """A partition as its writer has published it, with files of its own or in the shared log."""

    @property
    def topic_id(self) -> str:
        """The id of the topic; a later topic of the same name has another."""

    def published(self) -> Published:
        """Return both ends and the leader epochs, all of one moment."""

    def bytes_within(self, start: int, end: int) -> int:
        """Return about how many bytes the offsets [start, end) take."""

    def cuts(self, start: int, end: int, bytes_max: int) -> list[int]:
        """Return offsets that cut [start, end) into pieces of at most about *bytes_max*."""

    def plan_maintenance(
        self, config: TopicConfig, now_ms: int, *, force: bool = False, needed_from: int | None = None
    ) -> Planned:
        """Return what a pass of maintenance would do now. Changes nothing."""
