"""Two independent implementations and ours say the same with the same bytes, in every version."""

from __future__ import annotations

import random
from typing import Any

import pytest
from protocol.definitions import (
    SEED,
    Case,
    KafkaField,
    all_cases,
    crowded_message,
    default_of,
    definition,
    kafka_fields,
    random_message,
)
from protocol.newer_definitions import NEWER
from protocol.oracles import ORACLES, Oracle
from protocol.plain import decoded, encoded, from_ours, message_class, to_ours, understood, without_skipped

from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.schema import Array, Struct, fields_of

MESSAGES_EACH = 8

CASES = list(all_cases())
DECLARED = [case for case in CASES if case.key not in (ApiKey.PRODUCE, ApiKey.FETCH)]
PAIRS = [(case, oracle) for case in CASES for oracle in ORACLES if oracle.supports(case)]


def name_of(value: Case | Oracle) -> str:
    return str(value) if isinstance(value, Case) else value.name


@pytest.mark.parametrize(("case", "oracle"), PAIRS, ids=name_of)
def test_an_oracle_and_we_read_each_others_messages(case: Case, oracle: Oracle) -> None:
    print(f"seed {SEED}")
    rng = random.Random(f"{SEED} {case}")
    for _ in range(MESSAGES_EACH):
        message = random_message(rng, case)
        expected = understood(case, message)
        assert from_ours(case, decoded(case, oracle.encode(case, message))) == expected

        ours = encoded(case, to_ours(case, expected))
        assert without_skipped(case, oracle.decode(case, ours)) == expected
        assert from_ours(case, decoded(case, ours)) == expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_many_of_the_smallest_elements_as_there_are_bytes_for_are_read(case: Case) -> None:
    """What a count is compared with is the smallest element there can be, and not one larger."""
    for depth in (1, 2, 3):
        message = crowded_message(case, depth)
        for oracle in (each for each in ORACLES if each.supports(case)):
            assert from_ours(case, decoded(case, oracle.encode(case, message))) == understood(case, message)


def test_both_oracles_cover_every_message_of_every_version_that_they_have() -> None:
    """A comparison that is left out is none: count the pairs that are compared."""
    print(
        f"{len(APIS)} APIs, {len(PAIRS)} pairs of message version and oracle, {MESSAGES_EACH} messages each"
    )
    assert len(CASES) >= 446
    only_one = [case for case in CASES if case.name in NEWER]
    assert len(PAIRS) == 2 * len(CASES) - len(only_one)
    assert len(only_one) == 8


@pytest.mark.parametrize("case", DECLARED, ids=str)
def test_our_declarations_are_kafkas(case: Case) -> None:
    """Fields, order, tags, nullability and defaults agree, and so does the first flexible version."""
    flexible = definition(case.name)["flexibleVersions"]
    assert APIS[case.key].flexible_from == (0x7FFF if flexible == "none" else int(flexible.rstrip("+")))
    compare_declarations(message_class(case), kafka_fields(case.name), case.version)


def compare_declarations(cls: type[Any], kafka: tuple[KafkaField, ...], version: int) -> None:
    present = [each for each in kafka if version in each.versions]
    declared = fields_of(cls, version)
    # A struct that cannot be null is a new one by default, and is declared by its class.
    ours_by_default = [{} if isinstance(each.default, type) else each.default for each in declared]
    by_default = [{} if isinstance(default_of(each), dict) else default_of(each) for each in present]
    assert ours_by_default == by_default
    assert [(each.name, each.tag, version in each.nullable) for each in declared] == [
        (each.name, each.tag, each.nullable_in(version)) for each in present
    ]
    for ours, theirs in zip(declared, present, strict=True):
        kind = ours.type.element if isinstance(ours.type, Array) else ours.type
        if isinstance(kind, Struct):
            compare_declarations(kind.message, theirs.fields, version)
