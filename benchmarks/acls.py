"""Decisions by ACLs: what one costs over 10,000 of them, and what changing them costs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from benchmarks.measure import Figure, best_seconds
from cordwood.security import (
    AclBinding,
    Acls,
    Operation,
    PatternType,
    Permission,
    Principal,
    ResourceType,
)

COUNT = 10_000
DECISIONS = 2_000
GOAL_US = 20.0
_OPERATIONS = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL)


def run() -> list[Figure]:
    """Measure decisions over different sets of 10,000 rules, and changes of the largest."""
    figures = []
    sets: dict[str, tuple[list[AclBinding], list[str]]] = {
        "of many users and topics": (
            mixed(),
            [f"team-{number % 97}.events-{number}" for number in range(500)],
        ),
        "of many users on one topic": (on_one_topic(), ["orders"]),
        "of prefixes in prefixes, 100 deep": (nested(), ["a" * 249, "a" * 50 + "b", "a" * 99 + "b"]),
    }
    for name, (rules, topics) in sets.items():
        acls = Acls(rules)
        assert len(acls) == COUNT
        seconds = best_seconds({name: deciding(acls, topics)}, clock=time.process_time)[name] / DECISIONS
        figures.append(Figure(f"ACLs {name}: a decision", seconds * 1e6, "µs", GOAL_US, at_most=True))
    acls, change = Acls(mixed()), rule("team-5.new", PatternType.PREFIXED, "User:new")

    def changing() -> None:
        acls.add(change)
        acls.allows_any(Principal("User", "user-3"), "10.0.0.1", Operation.WRITE, ResourceType.TOPIC)
        acls.remove(change)

    seconds = best_seconds({"change": changing})["change"]
    figures.append(Figure("ACLs: one added and removed, and any topic asked for", seconds * 1e6, "µs"))
    seconds = best_seconds({"load": lambda: Acls(mixed())}, rounds=3)["load"]
    figures.append(Figure(f"ACLs: {COUNT:,} loaded", seconds * 1e3, "ms"))
    return figures


def deciding(acls: Acls, topics: Sequence[str]) -> Callable[[], None]:
    """Return a call that makes 2,000 decisions about *topics*."""
    users = [Principal("User", f"user-{number}") for number in range(100)]
    asked = [
        (
            users[number % len(users)],
            f"10.0.0.{number % 50}",
            _OPERATIONS[number % 3],
            topics[number % len(topics)],
        )
        for number in range(DECISIONS)
    ]

    def decide() -> None:
        for user, host, operation, topic in asked:
            acls.allows(user, host, operation, ResourceType.TOPIC, topic)

    return decide


def rule(
    name: str,
    pattern: PatternType,
    principal: str,
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    host: str = "*",
) -> AclBinding:
    """Return an ACL on topics."""
    return AclBinding(ResourceType.TOPIC, name, pattern, principal, host, operation, permission)


def mixed() -> list[AclBinding]:
    """Return rules as a company has them: for users on topics and on prefixes of teams, some denied."""
    drawn = random.Random(20_261_119)
    found: dict[AclBinding, None] = {}
    while len(found) < COUNT:
        number, team = drawn.randrange(500), drawn.randrange(97)
        prefixed = drawn.random() < 0.4
        found[
            rule(
                f"team-{team}." if prefixed and drawn.random() < 0.5 else f"team-{team}.events-{number}",
                PatternType.PREFIXED if prefixed else PatternType.LITERAL,
                f"User:user-{drawn.randrange(100)}",
                drawn.choice(_OPERATIONS),
                Permission.DENY if drawn.random() < 0.05 else Permission.ALLOW,
                f"10.0.0.{drawn.randrange(50)}" if drawn.random() < 0.1 else "*",
            )
        ] = None
    return list(found)


def on_one_topic() -> list[AclBinding]:
    """Return rules on one topic, for 10,000 users."""
    return [rule("orders", PatternType.LITERAL, f"User:user-{number}") for number in range(COUNT)]


def nested() -> list[AclBinding]:
    """Return rules of which most are prefixes of each other, as nobody has them: 100 deep for each user."""
    return [
        rule("a" * size, PatternType.PREFIXED, f"User:user-{number}")
        for size in range(1, 101)
        for number in range(COUNT // 100)
    ]
