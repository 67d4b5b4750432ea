"""What the broker tells groups: their limits and, for the consumer protocol, topics and settings."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import MappingProxyType

from cordwood import tenancy
from cordwood.broker import Node, Tenant
from cordwood.broker.groups import (
    ConsumerBasis,
    ConsumerTerms,
    Coordinator,
    GroupLimits,
    MigrationPolicy,
    TopicShape,
    TopicsView,
)
from cordwood.config import BrokerConfig, bounded_group_times
from cordwood.host import Clock

_NOTHING: Mapping[str, str] = MappingProxyType({})


class GroupTopics:
    """The topics of one org, as its groups see them. Any thread may ask; nothing blocks."""

    def __init__(self, tenant: Tenant, began_ms: int) -> None:
        self._tenant = tenant
        # Groups store the version with what their regular expressions match. So the numbers of an earlier run
        # of the broker must not come again: there was less than one change per microsecond.
        self._base = began_ms * 1000

    @property
    def version(self) -> int:
        """A number that changes with every change of a topic."""
        return self._base + self._tenant.changes

    def find(self, name: str) -> TopicShape | None:
        """Return the topic of that name, or None."""
        found = self._tenant.find(name)
        return None if found is None else TopicShape(found.id, found.partitions)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with that id, or None."""
        found = self._tenant.find_by_id(topic_id)
        return None if found is None else found.name


class ConsumerGroupTerms:
    """The settings of all groups of the consumer protocol. On the loop only."""

    def __init__(self, node: Node) -> None:
        self._settings = node.directory.settings
        self._known: tuple[BrokerConfig, ConsumerTerms] | None = None

    def of(self, group_id: str) -> ConsumerTerms:
        """Return the settings of a group, by its internal id."""
        config = self._settings.config
        if self._known is None or self._known[0] is not config:
            self._known = config, _terms_of(config, _NOTHING)
        name, org = _owned(group_id)
        own = self._settings.of_group(org, name)
        return _terms_of(config, own) if own else self._known[1]


def _owned(group_id: str) -> tenancy.Owned:
    """Return the clients' id of a group, and its org."""
    try:
        return tenancy.split_id(group_id)
    except ValueError:
        # A stored group with an invalid name belongs to no org; nobody can join it.
        return tenancy.Owned(group_id, tenancy.DEFAULT_ORG)


def _terms_of(config: BrokerConfig, own: Mapping[str, str]) -> ConsumerTerms:
    times = bounded_group_times(config, own)
    return ConsumerTerms(
        session_ms=times.session_ms,
        heartbeat_ms=times.heartbeat_ms,
        assignment_interval_ms=times.assignment_interval_ms,
        size_max=config.group_consumer_max_size,
        assignors=tuple(config.group_assignors.split(",")),
        regex_refresh_ms=config.group_regex_refresh_ms,
    )


def new_coordinator(node: Node, config: BrokerConfig, clock: Clock) -> Coordinator:
    """Return the coordinator of the groups of a broker, which knows none yet."""
    limits = GroupLimits(
        config.group_min_session_timeout_ms,
        config.group_max_session_timeout_ms,
        config.group_max_size,
        config.group_initial_rebalance_delay_ms,
        config.offsets_retention_minutes * 60_000,
    )
    basis = _consumer_basis(node, clock, ConsumerGroupTerms(node))
    return Coordinator(limits, lambda name: f"{name}-{uuid.uuid4()}", basis)


def _consumer_basis(node: Node, clock: Clock, terms: ConsumerGroupTerms) -> ConsumerBasis:
    """Return what groups of the consumer protocol are told. Its functions are for the loop."""
    began_ms, views = clock.now_ms(), dict[int, TopicsView]()

    def topics_of(group_id: str) -> TopicsView:
        org = _owned(group_id).org
        if org not in views:
            views[org] = GroupTopics(Tenant(node, node.directory.settings.config, org), began_ms)
        return views[org]

    return ConsumerBasis(
        topics_of, terms.of, lambda: MigrationPolicy(node.directory.settings.config.group_migration_policy)
    )
