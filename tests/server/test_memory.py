"""Memory that a request took is free when it was answered, without waiting for Python to look for rings."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.asking import Asking

from cordwood import Broker
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.server.connections import memory

VALUE = bytes(500_000)
REQUESTS = 40


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Leave it to reference counts alone what is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
def test_requests_and_responses_are_freed_as_soon_as_they_were_answered(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, Asking(broker.bootstrap) as client:
        client.create("orders")
        before = _large_buffers()
        for _ in range(REQUESTS):
            client.produce("orders", batch.encode_records([(None, VALUE)], 1_000, BatchOptions()))
            # One that waits, too: it leaves somebody to call if its client goes away.
            client.fetch("orders", max_bytes=2 * len(VALUE), max_wait_ms=10_000)
        held = sum(sys.getsizeof(buffer) for key, buffer in _large_buffers().items() if key not in before)
        print(f"{REQUESTS} requests of {len(VALUE)} bytes, {held} bytes of them held afterwards")
        assert held <= 4 * len(VALUE)


def _large_buffers() -> dict[int, bytes | bytearray]:
    """Return the large buffers that something tracked by Python refers to, by their identity.

    Other tests of this process leave buffers behind. The caller subtracts those that were there before;
    holding them here keeps an identity from being given to another buffer in the meantime.
    """
    return {
        id(held): held
        for holder in gc.get_objects()
        for held in gc.get_referents(holder)
        if isinstance(held, bytes | bytearray) and len(held) >= len(VALUE) // 2
    }


def test_an_allocator_without_such_a_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    memory.find_trim()()
