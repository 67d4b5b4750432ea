"""The time that the broker works for a client, with a limit: what is counted, and who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, cast

import pytest
from support.asking import Asking
from support.client_quotas import alter, fetched, produced
from support.clocks import HookedFiles, ManualClock
from support.patience import SECONDS_MAX, until

from cordwood import Broker
from cordwood.config.loading import OrgQuota
from cordwood.disk.memory import MemoryFiles
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse
from cordwood.security import ABSENT, REQUEST_PERCENTAGE, ClientEntity, ClientQuotas, QuotaClient
from cordwood.server import service
from cordwood.server.quotas import OrgQuotas, RequestTime

#: Who `Asking` is.
RAW: dict[str, str | None] = {"client-id": "raw"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock) -> Iterator[Broker]:
    with Broker(clock=clock) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as asking:
        yield asking


def time_of(clock: ManualClock, percentage: float) -> RequestTime:
    limits = ClientQuotas()
    limits.set(ClientEntity("alice"), {REQUEST_PERCENTAGE: percentage})
    quotas = OrgQuotas(OrgQuota(), 0, limits, lambda: 0, lambda count, then: None, clock)
    assert quotas.limits_time
    assert quotas.time_of(QuotaClient("bob", ABSENT)) is None
    time = quotas.time_of(QuotaClient("alice", ABSENT))
    assert time is not None
    return time


def test_steps_and_work_of_a_request_are_counted_once_and_its_waiting_is_not(clock: ManualClock) -> None:
    """At 10 percent, a second allows for 100 ms; what is beyond them is waited for ten times as long."""
    time = time_of(clock, 10.0)

    def outer() -> None:
        clock.advance(60)
        time.run(lambda: clock.advance(60))
        clock.advance(60)

    time.run(outer)
    assert time.owed_ms() == 800
    clock.advance(60_000)
    time.run(lambda: clock.advance(60))
    time.work(lambda: clock.advance(60))
    # While it worked in the thread, 6 ms of it were repaid.
    assert time.owed_ms() == 140


def test_a_step_is_counted_up_to_the_answer_and_the_rest_of_it_afterwards(clock: ManualClock) -> None:
    time = time_of(clock, 10.0)

    def step() -> None:
        clock.advance(110)
        assert time.owed_ms() == 100
        clock.advance(10)
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        time.run(step)
    assert time.owed_ms() == 190


def test_a_long_request_has_its_client_wait_a_second_at_a_time_and_is_forgotten_after_ten(
    clock: ManualClock,
) -> None:
    time = time_of(clock, 1.0)
    time.run(lambda: clock.advance(60_000))
    assert time.owed_ms() == 1_000
    clock.advance(9_500)
    assert time.owed_ms() == 500
    clock.advance(500)
    assert time.owed_ms() == 0


def test_of_a_coroutine_the_steps_are_counted_and_exceptions_reach_it(clock: ManualClock) -> None:
    time = time_of(clock, 10.0)
    seen: list[str] = []

    async def steps(waited_for: asyncio.Future[str]) -> str:
        clock.advance(60)
        seen.append(await waited_for)
        clock.advance(60)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
        return "done"

    async def run() -> str:
        waited_for: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(time.run_all(lambda: steps(waited_for)))
        await asyncio.sleep(0)
        assert time.owed_ms() == 0
        clock.advance(30)
        waited_for.set_result("result")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert asyncio.run(run()) == "done"
    assert seen == ["result", "cancelled"]
    # Of 120 ms, 100 were allowed and 9 were repaid since the first step.
    assert time.owed_ms() == 110


def test_a_client_whose_requests_take_too_long_waits_and_is_told(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock, client: Asking, broker: Broker
) -> None:
    """Requests of any kind; and the answer of another client is not changed."""
    shared = ListGroupsResponse()

    async def slow(context: Any, exchange: Any) -> ListGroupsResponse:
        clock.advance(100)
        return shared

    monkeypatch.setitem(cast("dict[ApiKey, Any]", service.COLD), ApiKey.LIST_GROUPS, slow)
    asked = ApiKey.LIST_GROUPS, ListGroupsRequest()
    assert client.ask(*asked).throttle_time_ms == 0
    alter(client, RAW, request_percentage=10.0)
    assert client.ask(*asked).throttle_time_ms == 0, "a burst of one second"
    assert client.ask(*asked).throttle_time_ms in range(890, 901)
    assert shared.throttle_time_ms == 0
    with Asking(broker.bootstrap) as other, Asking(broker.bootstrap) as again:
        for each in (client, again):
            each.send(ApiKey.LIST_GROUPS, 4, ListGroupsRequest())
        other.send(ApiKey.LIST_GROUPS, 4, ListGroupsRequest(), client_id="other")
        assert other.receive(ApiKey.LIST_GROUPS, 4).throttle_time_ms == 0
        assert client.is_silent()
        assert again.is_silent(), "who connects again waits as well"
        clock.advance(3_000)
        for each in (client, again):
            each.receive(ApiKey.LIST_GROUPS, 4)


def is_parked(broker: Broker) -> bool:
    """Return whether a fetch waits, between two steps of the loop."""
    found: Future[int] = Future()
    server = broker._server
    assert server is not None
    broker._loop.call_soon_threadsafe(lambda: found.set_result(len(server._parking)))
    return found.result(SECONDS_MAX) == 1


def test_the_time_of_reads_in_threads_is_counted_and_waiting_for_records_is_not(clock: ManualClock) -> None:
    files = HookedFiles(MemoryFiles())
    with Broker(files=files, clock=clock) as broker, Asking(broker.bootstrap) as client:
        client.create("orders")
        alter(client, RAW, request_percentage=10.0)
        for _ in range(3):
            assert produced(client, 1_000) == 0
        files.before = lambda kind, path: clock.advance(300) if kind == "read" else None
        _, throttle_ms = fetched(client)
        assert throttle_ms == 1_000
        files.before = lambda kind, path: None
        clock.advance(60_000)
        client.send(ApiKey.FETCH, 12, client.fetch_request("orders", {0: 3}, max_wait_ms=60_000))
        until(lambda: is_parked(broker), "the fetch waits", pause=0)
        clock.advance(30_000)
        with Asking(broker.bootstrap) as writer:
            produced(writer, 1_000)
        assert client.receive(ApiKey.FETCH, 12).throttle_time_ms == 0
