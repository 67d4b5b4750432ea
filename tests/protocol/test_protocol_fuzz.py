"""Any bytes give a message or a ProtocolError, and never cost more memory than a multiple of themselves."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from protocol.definitions import (
    SEED,
    Case,
    KafkaField,
    all_cases,
    kafka_fields,
    random_message,
    small_message,
)
from protocol.mutations import HUGE, LIES, mutated_frames, with_each
from protocol.plain import encoded, to_ours, understood

from cordwood.errors import MalformedMessage, ProtocolError
from cordwood.protocol.apis import ApiKey, decode_request, decode_response
from cordwood.protocol.wire import varint

CASES = list(all_cases())
REQUESTS = [case for case in CASES if case.direction == "request"]
MUTATED_FRAMES = 120_000
MEASURED_FRAMES = 15_000

#: What the objects of a message may take for each byte of the frame, and what any message may take.
#: The worst there is: two bytes of an empty name and no tags, for an object of 64.
BYTES_PER_BYTE = 64
BYTES_ALWAYS = 16 << 10


@contextmanager
def allocating_at_most(size_max: int) -> Iterator[None]:
    """Fail if at any time more than *size_max* bytes are allocated beyond what was before."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    yield
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before <= size_max, f"{peak - before} bytes, where {size_max} are allowed"


@contextmanager
def traced() -> Iterator[None]:
    """Have allocations counted."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def decode_any(case: Case, frame: bytes) -> object:
    if case.direction == "request":
        return decode_request(frame)
    return decode_response(case.key, case.version, frame)


def present_in(case: Case) -> list[KafkaField]:
    return [each for each in kafka_fields(case.name) if case.version in each.versions]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_length_that_lies_is_refused_wherever_it_stands_and_costs_nothing(case: Case) -> None:
    frame = encoded(case, to_ours(case, understood(case, small_message(case))))
    refused = 0
    for lying in with_each(frame, LIES):
        try:
            decode_any(case, lying)
        except ProtocolError:
            refused += 1
    has_lengths = any(each.type in ("string", "bytes") or "[]" in each.type for each in present_in(case))
    assert refused or not has_lengths
    huge = with_each(frame, HUGE)
    with traced(), allocating_at_most(BYTES_PER_BYTE * len(frame) + BYTES_ALWAYS):
        for lying in huge:
            with suppress(ProtocolError):
                decode_any(case, lying)


def valid_frames() -> list[bytes]:
    """Return two requests of each version of each API, a small one and a large one."""
    rng = random.Random(SEED)
    small = [(case, small_message(case)) for case in REQUESTS]
    large = [(case, random_message(rng, case)) for case in REQUESTS]
    frames = [encoded(case, to_ours(case, understood(case, plain))) for case, plain in small + large]
    for frame in frames:
        decode_request(frame)  # so that no later measure includes compiling
    return frames


def test_mutated_requests_give_requests_or_protocol_errors() -> None:
    outcomes: Counter[str] = Counter()
    for frame in mutated_frames(random.Random(SEED), valid_frames(), MUTATED_FRAMES):
        try:
            decode_request(frame)
        except ProtocolError as error:
            outcomes[type(error).__name__] += 1
        else:
            outcomes["a request"] += 1
    print(f"seed {SEED}: {MUTATED_FRAMES} mutated frames gave {dict(outcomes)}")
    assert outcomes.total() == MUTATED_FRAMES
    assert all(outcomes[each] > 1000 for each in ("a request", "MalformedMessage", "UnsupportedVersion"))


def test_mutated_responses_give_responses_or_are_malformed() -> None:
    outcomes: Counter[str] = Counter()
    for case in (each for each in CASES if each.direction == "response"):
        rng = random.Random(f"{SEED} {case}")
        plain = (small_message(case), random_message(rng, case), random_message(rng, case))
        frames = [encoded(case, to_ours(case, understood(case, each))) for each in plain]
        for frame in mutated_frames(rng, frames, 200):
            try:
                decode_response(case.key, case.version, frame)
            except MalformedMessage:
                outcomes["MalformedMessage"] += 1
            else:
                outcomes["a response"] += 1
    print(f"seed {SEED}: {outcomes.total()} mutated frames gave {dict(outcomes)}")
    assert all(outcomes[each] > 1000 for each in ("a response", "MalformedMessage"))


def test_mutated_requests_stay_within_the_bound_on_memory() -> None:
    frames = valid_frames()
    with traced():
        for frame in mutated_frames(random.Random(SEED + 1), frames, MEASURED_FRAMES):
            with allocating_at_most(BYTES_PER_BYTE * len(frame) + BYTES_ALWAYS), suppress(ProtocolError):
                decode_request(frame)

    print(f"seed {SEED + 1}: {MEASURED_FRAMES} mutated frames took at most {BYTES_PER_BYTE} bytes a byte")


def test_random_bytes_are_refused_or_are_a_request() -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    for _ in range(20_000):
        head = bytes((0, rng.choice(list(ApiKey)), 0, rng.randrange(15)))
        frame = rng.choice((head, b"")) + rng.randbytes(rng.randrange(64))
        with suppress(ProtocolError):
            decode_request(frame)


def test_the_bound_on_memory_holds_for_the_messages_that_use_most_of_it() -> None:
    """As many of the smallest elements as a quarter of a megabyte holds stay within the bound."""
    name = b"\x01\x00"  # an empty name, no tags
    count = 1 << 17
    header = bytes((0, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0)) + bytes(4) + b"\xff\xff" + b"\0"
    frame = header + varint(count + 1) + name * count + bytes(4) + b"\xff" + b"\0"
    with traced(), allocating_at_most(BYTES_PER_BYTE * len(frame) + BYTES_ALWAYS):
        request = decode_request(frame)
    assert len(request.body.topics) == count
