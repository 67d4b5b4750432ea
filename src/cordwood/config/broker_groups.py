"""The settings of a broker for groups, of the classic and of the consumer protocol (KIP-848)."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.config.kinds import INT_MAX, SettingKind, integer, one_of
from cordwood.config.setting import declare
from cordwood.errors import InvalidSetting

#: The assignors by the names that Kafka accepts for them.
_ASSIGNORS = {
    "uniform": "uniform",
    "range": "range",
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
_TIME = integer(1, unit="milliseconds")
_TIME_OR_NONE = integer(0, unit="milliseconds")


def parse_assignors(text: str) -> str:
    """Return assignors under their short names. Raises ValueError if one is unknown or named twice."""
    names = [_ASSIGNORS.get(part.strip(), "") for part in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"not a list of assignors: {text!r}")
    return ",".join(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroupConfig:
    """The settings of a broker for groups; those of the consumer protocol may have some of their own."""

    group_min_session_timeout_ms: int = declare(
        "group.min.session.timeout.ms",
        integer(1, unit="milliseconds"),
        6_000,
        "The shortest session timeout that a member of a consumer group may request.",
    )
    group_max_session_timeout_ms: int = declare(
        "group.max.session.timeout.ms",
        integer(1, unit="milliseconds"),
        1_800_000,
        "The longest session timeout that a member of a consumer group may request.",
    )
    group_max_size: int = declare(
        "group.max.size",
        integer(1),
        INT_MAX,
        "The maximum number of members of a consumer group.",
    )
    group_initial_rebalance_delay_ms: int = declare(
        "group.initial.rebalance.delay.ms",
        integer(0, unit="milliseconds"),
        0,
        "How long the first member of a consumer group waits for others before partitions are assigned.",
    )
    offsets_retention_minutes: int = declare(
        "offsets.retention.minutes",
        integer(1, unit="minutes"),
        7 * 24 * 60,
        "How long the committed offsets of a consumer group without members are kept.",
    )
    offset_metadata_max_bytes: int = declare(
        "offset.metadata.max.bytes",
        integer(0, unit="bytes"),
        4096,
        "The longest metadata string that may be committed with an offset.",
    )
    group_session_timeout_ms: int = declare(
        "group.consumer.session.timeout.ms",
        _TIME,
        45_000,
        "How long a member of the consumer protocol that sends no heartbeats stays in its group.",
    )
    group_session_timeout_min_ms: int = declare(
        "group.consumer.min.session.timeout.ms",
        _TIME,
        45_000,
        "The shortest session timeout that a group of the consumer protocol may have.",
    )
    group_session_timeout_max_ms: int = declare(
        "group.consumer.max.session.timeout.ms",
        _TIME,
        60_000,
        "The longest session timeout that a group of the consumer protocol may have.",
    )
    group_heartbeat_interval_ms: int = declare(
        "group.consumer.heartbeat.interval.ms",
        _TIME,
        5_000,
        "The interval between heartbeats that members of the consumer protocol are told to keep.",
    )
    group_heartbeat_interval_min_ms: int = declare(
        "group.consumer.min.heartbeat.interval.ms",
        _TIME,
        5_000,
        "The shortest heartbeat interval that a group of the consumer protocol may have.",
    )
    group_heartbeat_interval_max_ms: int = declare(
        "group.consumer.max.heartbeat.interval.ms",
        _TIME,
        15_000,
        "The longest heartbeat interval that a group of the consumer protocol may have.",
    )
    group_assignment_interval_ms: int = declare(
        "group.consumer.assignment.interval.ms",
        _TIME_OR_NONE,
        1_000,
        "The shortest time between two assignments of a group of the consumer protocol.",
    )
    group_assignment_interval_min_ms: int = declare(
        "group.consumer.min.assignment.interval.ms",
        _TIME_OR_NONE,
        0,
        "The shortest assignment interval that a group of the consumer protocol may have.",
    )
    group_assignment_interval_max_ms: int = declare(
        "group.consumer.max.assignment.interval.ms",
        _TIME_OR_NONE,
        15_000,
        "The longest assignment interval that a group of the consumer protocol may have.",
    )
    group_consumer_max_size: int = declare(
        "group.consumer.max.size",
        integer(1),
        INT_MAX,
        "The maximum number of members of a group of the consumer protocol.",
    )
    group_assignors: str = declare(
        "group.consumer.assignors",
        SettingKind(
            parse_assignors,
            "a comma-separated list of uniform and range, or of Kafka's classes of these assignors",
            "list",
        ),
        "uniform,range",
        "The assignors that members of the consumer protocol may ask for; the first one is the default.",
    )
    group_regex_refresh_ms: int = declare(
        "group.consumer.regex.refresh.interval.ms",
        integer(10_000, unit="milliseconds"),
        600_000,
        "How often the regular expressions of a group are compared with all topics if no topic has changed: "
        "the rights of its members may have.",
    )
    group_migration_policy: str = declare(
        "group.consumer.migration.policy",
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
        "bidirectional",
        "Which groups with members may change their protocol as members join: classic ones to consumer "
        "(upgrade), consumer ones to classic (downgrade), both, or none.",
    )

    def check_consumer_groups(self) -> None:
        """Check that defaults lie within their bounds.

        Raises:
            InvalidSetting: For the first one that does not.
        """
        check_bounds(self, ConsumerGroupTimes.of(self), "group.")


@dataclass(frozen=True, slots=True)
class ConsumerGroupTimes:
    """The times of one group of the consumer protocol, in milliseconds."""

    session_ms: int
    heartbeat_ms: int
    assignment_interval_ms: int

    @classmethod
    def of(cls, config: BrokerGroupConfig) -> ConsumerGroupTimes:
        """Return the times of a group without settings of its own."""
        return cls(
            config.group_session_timeout_ms,
            config.group_heartbeat_interval_ms,
            config.group_assignment_interval_ms,
        )


def check_bounds(config: BrokerGroupConfig, times: ConsumerGroupTimes, prefix: str) -> None:
    """Check that *times* lie within the bounds of *config*; *prefix* is that of the names of settings.

    Raises:
        InvalidSetting: For the first one that does not.
    """
    bounded = (
        (
            "consumer.session.timeout.ms",
            times.session_ms,
            config.group_session_timeout_min_ms,
            config.group_session_timeout_max_ms,
        ),
        (
            "consumer.heartbeat.interval.ms",
            times.heartbeat_ms,
            config.group_heartbeat_interval_min_ms,
            config.group_heartbeat_interval_max_ms,
        ),
        (
            "consumer.assignment.interval.ms",
            times.assignment_interval_ms,
            config.group_assignment_interval_min_ms,
            config.group_assignment_interval_max_ms,
        ),
    )
    for name, value, least, most in bounded:
        if not least <= value <= most:
            kind = name.removeprefix("consumer.")
            expected = (
                f"from group.consumer.min.{kind} to group.consumer.max.{kind}, here from {least} to {most}"
            )
            raise InvalidSetting(prefix + name, value, expected)
    if times.heartbeat_ms >= times.session_ms:
        expected = f"less than {prefix}consumer.session.timeout.ms, here {times.session_ms}"
        raise InvalidSetting(f"{prefix}consumer.heartbeat.interval.ms", times.heartbeat_ms, expected)
