"""Threads that the system does not give: a server has all of its own when it starts, or does not start."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from broker.nodes import batch_of
from support.asking import Asking
from support.scraping import scrape

import cordwood
from cordwood.errors import ResourcesExhausted
from cordwood.host import Host
from cordwood.host.crew import Crew
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.groups import ListGroupsRequest
from cordwood.protocol.messages.producers import InitProducerIdRequest
from cordwood.server.threads import Workers

LISTENING = {"cordwood.metrics.listen": "127.0.0.1:0"}


@contextmanager
def threads_left(count: int) -> Iterator[list[str]]:
    """Let the system start *count* threads more; yield the names of those that were started."""
    started: list[str] = []
    start = Thread.start

    def limited(self: Thread) -> None:
        if len(started) >= count:
            # What Python makes of EAGAIN.
            raise RuntimeError("can't start new thread")
        started.append(self.name)
        start(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Thread, "start", limited)
        yield started


def ours() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("cordwood-")}


def test_every_request_is_answered_where_no_thread_can_be_started(tmp_path: Path) -> None:
    """Requests, many syncs at once, metrics, and the end of the server: none of them starts a thread."""
    broker = cordwood.Broker(tmp_path, config=LISTENING)
    with threads_left(0) as started:
        with Asking(broker.bootstrap) as client:
            client.create("orders", 8)
            data = {partition: batch_of(b"value") for partition in range(8)}
            answer = client.ask(ApiKey.PRODUCE, client.produce_request("orders", data))
            assert [each.error_code for each in answer.topics[0].partitions] == [0] * 8
            assert client.fetch("orders", 0).high_watermark == 1
            asked = InitProducerIdRequest(transactional_id=None)
            assert client.ask(ApiKey.INIT_PRODUCER_ID, asked).error_code == 0
            assert client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest()).error_code == 0
            assert client.delete("orders") == 0
        assert scrape(broker.metrics_url).value("cordwood_topics") == 0
        broker.close()
        assert started == []
    assert not ours()


def test_a_server_that_cannot_have_its_threads_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """However many of them could be started: the directory is free again, and no thread is left."""
    count = 0
    while True:
        with threads_left(count):
            try:
                broker = cordwood.Broker(tmp_path, config=LISTENING)
            except ResourcesExhausted:
                count += 1
                left = ours()
                if left:
                    pytest.fail(f"after {count - 1} threads there are {left}")
                continue
            broker.close()
            break
    print(f"{count} threads")
    assert count > 15
    assert not ours()


def test_a_log_that_cannot_have_its_thread_says_so_and_lets_others_open_the_directory(tmp_path: Path) -> None:
    with threads_left(0), pytest.raises(ResourcesExhausted, match="could not be started"):
        cordwood.open(tmp_path)
    with cordwood.open(tmp_path) as log:
        log.topic("orders").append(b"value")


def test_a_crew_does_all_that_it_was_given_before_it_ends() -> None:
    crew = Crew("tested", 3, Host())
    assert crew.map(lambda number: number * number, range(100)) == [number * number for number in range(100)]
    done: list[int] = []
    for number in range(100):
        crew.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    crew.close()
    crew.close()
    assert sorted(done) == list(range(100))
    with pytest.raises(RuntimeError):
        crew.submit(lambda: None)


def test_what_a_call_raises_costs_no_thread() -> None:
    told: list[object] = []
    workers = Workers("tested", 1, lambda call: call(), Host())

    def fail() -> None:
        raise ValueError("of the call")

    workers.run_for(fail, told.append)
    workers.run_for(lambda: "next", told.append)
    workers.close()
    assert isinstance(told[0], ValueError)
    assert told[1:] == ["next"]
