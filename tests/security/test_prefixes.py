"""The prefixes of a name are found without looking at any others."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.security import (
    AclBinding,
    Acls,
    Operation,
    PatternType,
    Permission,
    Principal,
    ResourceType,
)
from cordwood.security.prefixes import Prefixes, shared_length

WORDS = st.text("ab", max_size=7)


@settings(max_examples=300)
@given(st.lists(WORDS, unique=True, max_size=40), st.sets(st.integers(0, 39)), st.lists(WORDS, max_size=20))
def test_exactly_the_prefixes_of_a_name_are_found(
    stored: list[str], removed: set[int], names: list[str]
) -> None:
    """The longest first, after additions and removals in any order."""
    prefixes: Prefixes[str] = Prefixes()
    for word in stored:
        prefixes.add(word, word.upper())
    for index in sorted(removed):
        if index < len(stored):
            prefixes.remove(stored[index])
    left = [word for index, word in enumerate(stored) if index not in removed]
    for name in [*names, *stored]:
        expected = sorted((word for word in left if name.startswith(word)), key=len, reverse=True)
        assert prefixes.matching(name) == [word.upper() for word in expected]
        assert prefixes.get(name) == (name.upper() if name in left else None)


@given(WORDS, WORDS)
def test_the_shared_length_is_that_of_the_longest_common_beginning(one: str, other: str) -> None:
    common = [size for size in range(8) if one[:size] == other[:size] and size <= min(len(one), len(other))]
    assert shared_length(one, other) == max(common)


def calls_to_decide(acls: Acls, name: str) -> Counter[str]:
    """Return how often each function was called for one decision."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            calls[getattr(argument, "__name__", frame.f_code.co_name)] += 1

    sys.setprofile(count)
    try:
        acls.allows(Principal("User", "alice"), "10.0.0.1", Operation.READ, ResourceType.TOPIC, name)
    finally:
        sys.setprofile(None)
    return calls


def test_rules_that_cannot_match_cost_nothing() -> None:
    """A decision over 3,000 further rules takes exactly the same steps."""

    def rule(name: str, pattern: PatternType, principal: str = "User:alice", host: str = "*") -> AclBinding:
        return AclBinding(
            ResourceType.TOPIC, name, pattern, principal, host, Operation.READ, Permission.ALLOW
        )

    acls = Acls([rule("orders-7", PatternType.LITERAL), rule("orders", PatternType.PREFIXED)])
    # The first decision about an address parses it.
    calls_to_decide(acls, "orders-7")
    few = calls_to_decide(acls, "orders-7")
    for number in range(500):
        acls.add(rule(f"orders-{number}", PatternType.LITERAL))
        acls.add(rule(f"orders-7{number}", PatternType.PREFIXED))
        acls.add(rule(f"a{number}", PatternType.PREFIXED))
        acls.add(rule("orders-7", PatternType.LITERAL, f"User:{number}"))
        acls.add(rule("orders", PatternType.PREFIXED, host=f"10.1.{number // 250}.{number % 250}"))
        acls.add(
            rule("*", PatternType.LITERAL, f"User:{number}") if number else rule("z", PatternType.LITERAL)
        )
    assert len(acls) == 3001
    many = calls_to_decide(acls, "orders-7")
    print(f"{few.total()} steps")
    assert few == many
    assert few.total() >= 5
