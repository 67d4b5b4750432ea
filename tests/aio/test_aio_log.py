"""What only the library for asyncio promises: shared syncs, cancellation, few threads, one event loop."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.awaiting import OffLoopFiles, refused_here
from support.clocks import HookedFiles, ManualClock
from support.disks import FaultPlan, FaultyFiles, image
from support.logs import DATA, SMALL
from support.patience import SECONDS_MAX

import cordwood
import cordwood.aio
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import (
    CordwoodError,
    LogClosed,
    LogFailed,
    OffsetOutOfRange,
    UnexpectedOffset,
    UnknownTopic,
    WrongEventLoop,
)

THREADS_MAX = 9


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run *main* on a loop of its own, within a limit."""
    asyncio.run(asyncio.wait_for(main(), SECONDS_MAX))


async def opened(files: Any = None, **options: Any) -> cordwood.aio.Log:
    guarded = OffLoopFiles(files or MemoryFiles(), refused_here())
    return await cordwood.aio.open(DATA, files=guarded, clock=ManualClock(), **options)


def our_threads() -> set[threading.Thread]:
    """Return the threads of the library. Some may be those of an earlier test, and end at any time."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("cordwood")}


class Gate:
    """Holds disk calls of one kind until it is opened, and says when the first one has come."""

    def __init__(self, files: HookedFiles, kind: str, path: str = "") -> None:
        self.loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self._open = threading.Event()
        self._wanted = (kind, path)
        files.before = self._before

    def _before(self, kind: str, path: str) -> None:
        if kind == self._wanted[0] and path.endswith(self._wanted[1]) and not self._open.is_set():
            self.loop.call_soon_threadsafe(self.reached.set)
            assert self._open.wait(SECONDS_MAX)

    def open(self) -> None:
        self._open.set()


async def values(topic: cordwood.aio.Topic, partition: int = 0) -> list[bytes | None]:
    return [record.value async for record in topic.read(partition)]


# --- Shared syncs and few threads ----------------------------------------------------------------


def test_a_thousand_concurrent_appends_cost_a_few_syncs_and_keep_the_order_of_their_calls() -> None:
    async def main() -> None:
        files = FaultyFiles(MemoryFiles())
        async with await opened(files) as log:
            topic = await log.topic("t")
            await topic.append(b"first")
            before = files.calls.count("sync")
            placed = await asyncio.gather(*(topic.append(b"%d" % i) for i in range(1_000)))
            syncs = files.calls.count("sync") - before
            print(f"1,000 concurrent appends: {syncs} syncs")
            assert syncs < 20
            assert [place.offset for place in placed] == list(range(1, 1_001))
            assert (await values(topic))[1:] == [b"%d" % i for i in range(1_000)]

    run(main)


@pytest.mark.parametrize("storage", ["own", "shared"])
def test_appends_to_many_partitions_share_their_syncs(storage: str) -> None:
    async def main() -> None:
        files = FaultyFiles(MemoryFiles())
        async with await opened(files) as log:
            topic = await log.topic("t", 8, {"cordwood.storage": storage, "cordwood.chain": "false"})
            for partition in range(8):
                await topic.append(b"first", partition=partition)
            before = files.calls.count("sync")
            await asyncio.gather(*(topic.append(b"%d" % i, partition=i % 8) for i in range(400)))
            syncs = files.calls.count("sync") - before
            print(f"400 concurrent appends to 8 partitions, {storage}: {syncs} syncs")
            assert syncs < 100
            for partition in range(8):
                assert (await values(topic, partition))[1:] == [b"%d" % i for i in range(partition, 400, 8)]

    run(main)


def test_no_call_starts_a_thread_and_closing_ends_all() -> None:
    async def main() -> None:
        before = our_threads()
        log = await opened()
        started = len(our_threads() - before)
        assert 0 < started <= THREADS_MAX
        topic = await log.topic("t", 4)
        followers = [asyncio.create_task(anext(topic.read(i % 4, follow=True))) for i in range(1_000)]
        appends = [asyncio.create_task(topic.append(b"x", partition=i % 4)) for i in range(1_000)]
        reads = [asyncio.create_task(topic.high_watermark(i % 4)) for i in range(100)]
        await asyncio.gather(*followers, *appends, *reads)
        assert len(our_threads() - before) == started
        await log.close()
        # The writer ends right after it has told that the log is closed.
        while our_threads() - before:
            await asyncio.sleep(0.001)
        print(f"{started} threads")

    run(main)


def test_one_refused_append_does_not_touch_those_it_shares_a_round_with() -> None:
    async def main() -> None:
        async with await opened() as log:
            topic = await log.topic("t", config={"max.message.bytes": "1000"})
            found = await asyncio.gather(
                topic.append(b"0"),
                topic.append(b"x" * 2_000),
                topic.append(b"1", expected_offset=7),
                topic.append(b"1", expected_offset=1),
                return_exceptions=True,
            )
            assert [type(each).__name__ for each in found] == [
                "Placement",
                "FrameTooLarge",
                "UnexpectedOffset",
                "Placement",
            ]
            assert isinstance(found[2], UnexpectedOffset)
            assert await values(topic) == [b"0", b"1"]

    run(main)


# --- Cancellation --------------------------------------------------------------------------------


def test_a_cancelled_append_that_waits_for_its_turn_is_never_stored() -> None:
    async def main() -> None:
        files = HookedFiles(MemoryFiles())
        async with await opened(files) as log:
            topic = await log.topic("t")
            await topic.append(b"first")
            gate = Gate(files, "sync")
            taken = asyncio.create_task(topic.append(b"taken"))
            await gate.reached.wait()
            waiting = asyncio.create_task(topic.append(b"never"))
            after = asyncio.create_task(topic.append(b"after"))
            await asyncio.sleep(0)
            waiting.cancel()
            gate.open()
            assert (await taken, await after) == ((0, 1), (0, 2))
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await values(topic) == [b"first", b"taken", b"after"]

    run(main)


def test_a_cancelled_append_that_the_writer_has_taken_is_stored_whole_and_synced() -> None:
    async def main() -> None:
        files = HookedFiles(MemoryFiles())
        async with await opened(files) as log:
            topic = await log.topic("t")
            await topic.append(b"first")
            gate = Gate(files, "sync")
            taken = asyncio.create_task(topic.append_many([(None, b"1"), (None, b"2")]))
            await gate.reached.wait()
            taken.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taken
            gate.open()
            await topic.append(b"next")
            assert await values(topic) == [b"first", b"1", b"2", b"next"]

    run(main)


async def stuck_after(chunk: bytes, came: asyncio.Event) -> AsyncIterator[bytes]:
    yield chunk
    came.set()
    await asyncio.Event().wait()


def test_a_cancelled_stream_stores_nothing_and_leaves_no_file() -> None:
    async def main() -> None:
        files = MemoryFiles()
        async with await opened(files) as log:
            topic = await log.topic("t")
            await topic.append_stream([b"before"])
            before = image(files, DATA)
            came = asyncio.Event()
            # Enough that a part of it is on the disk.
            chunk = b"x" * 600_000
            stream = asyncio.create_task(topic.append_stream(stuck_after(chunk, came)))
            await came.wait()
            assert len(files.list(f"{DATA}/tmp")) == 1
            stream.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stream
            assert image(files, DATA) == before
            assert (await topic.append(b"after")).offset == 1

    run(main)


def test_a_step_that_is_cancelled_gives_its_record_to_the_next_one() -> None:
    """As with ``asyncio.wait_for`` around each step; nothing is lost or doubled."""

    async def main() -> None:
        files = HookedFiles(MemoryFiles())
        async with await opened(files) as log:
            topic = await log.topic("t", config=SMALL)
            for i in range(30):
                await topic.append(b"%d" % i)
            reading, found = topic.read(stop=40, follow=True), list[int]()
            while len(found) < 40:
                step: asyncio.Future[cordwood.Record] = asyncio.ensure_future(anext(reading))
                for _ in range(len(found) % 4):
                    await asyncio.sleep(0)
                step.cancel()
                try:
                    found.append((await step).offset)
                except asyncio.CancelledError:
                    found.append((await anext(reading)).offset)
                if len(found) >= 30:
                    await topic.append(b"more")
            assert found == list(range(40))
            assert len(log._engine.waiters) == 0

    run(main)


def test_a_cancelled_step_of_a_scan_gives_its_batch_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordwood.embedded.scan.WINDOW_BYTES", 200)

    async def main() -> None:
        async with await opened() as log:
            topic = await log.topic("t", config=SMALL)
            for i in range(30):
                await topic.append(b"%d" % i)
            batches, found = aiter(topic.scan(columns=["offset"])), list[int]()
            for turn in range(1_000):
                step = asyncio.ensure_future(anext(batches))
                for _ in range(turn % 5):
                    await asyncio.sleep(0)
                if turn % 2:
                    step.cancel()
                try:
                    found += (await step)["offset"].to_pylist()
                except asyncio.CancelledError:
                    continue
                except StopAsyncIteration:
                    break
            assert found == list(range(30))
            table = await log.scan("t", 0, start=10).table()
            assert table["offset"].to_pylist() == list(range(10, 30))
            with pytest.raises(UnknownTopic):
                await log.scan("absent").table()

    run(main)


def test_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        before, cancelled = our_threads(), 0
        for turns in range(6):
            opening = asyncio.ensure_future(cordwood.aio.open(tmp_path / "data"))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            try:
                # On a machine that lets this loop wait it may be open by now.
                await (await opening).close()
            except asyncio.CancelledError:
                cancelled += 1
        assert cancelled
        while our_threads() - before:
            await asyncio.sleep(0.001)
        async with cordwood.aio.open(tmp_path / "data") as log:
            await (await log.topic("t")).append(b"0")

    run(main)


# --- Following -----------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["own", "shared"])
def test_an_idle_follower_asks_nothing_of_the_disk_and_gets_each_record(storage: str) -> None:
    """From before the first record; what happens in another topic does not make it look at the disk."""

    async def main() -> None:
        files = FaultyFiles(MemoryFiles())
        async with await opened(files) as log:
            other = await log.topic("other", config={"cordwood.chain": "false"})
            topic = await log.topic("t", 2, {"cordwood.storage": storage, "cordwood.chain": "false"})
            reading = topic.read(1, follow=True)
            for i in range(5):
                step: asyncio.Future[cordwood.Record] = asyncio.ensure_future(anext(reading))
                while not len(log._engine.waiters):
                    await asyncio.sleep(0)
                await other.append(b"elsewhere")
                await topic.append(b"elsewhere", partition=0)
                assert not step.done()
                await topic.append(b"%d" % i, partition=1)
                assert (await step).value == b"%d" % i
            await reading.begin()

    run(main)


def test_a_follower_sees_no_record_before_it_is_durable() -> None:
    async def main() -> None:
        files = HookedFiles(MemoryFiles())
        async with await opened(files) as log:
            topic = await log.topic("t")
            await topic.append(b"0")
            reading = topic.read(start=1, follow=True)
            step: asyncio.Future[cordwood.Record] = asyncio.ensure_future(anext(reading))
            gate = Gate(files, "sync")
            append = asyncio.create_task(topic.append(b"1"))
            await gate.reached.wait()
            assert await topic.high_watermark() == 1
            assert not step.done()
            gate.open()
            await append
            assert (await step).value == b"1"

    run(main)


def test_a_thousand_followers_get_every_record() -> None:
    async def main() -> None:
        async with await opened() as log:
            topic = await log.topic("t", config={"segment.bytes": "2000"})

            async def follow(start: int) -> list[int]:
                return [record.offset async for record in topic.read(0, start, 20, follow=True)]

            await topic.append_many([(None, b"before")] * 8)
            followers = [asyncio.create_task(follow(i % 8)) for i in range(1_000)]
            for i in range(12):
                await topic.append(b"%d" % i)
            for i, found in enumerate(await asyncio.gather(*followers)):
                assert found == list(range(i % 8, 20))
            assert len(log._engine.waiters) == 0

    run(main)


@pytest.mark.parametrize("used", [True, False], ids=["a used partition", "an unused one"])
def test_a_follower_ends_when_the_log_is_closed(used: bool) -> None:
    async def main() -> None:
        log = await opened()
        topic = await log.topic("t")
        if used:
            await topic.append(b"0")

        async def follow() -> int:
            return len([record async for record in topic.read(follow=True)])

        followers = [asyncio.create_task(follow()) for _ in range(16)]
        while len(log._engine.waiters) < 16:
            await asyncio.sleep(0)
        await log.close()
        assert await asyncio.gather(*followers) == [int(used)] * 16

    run(main)


@pytest.mark.parametrize("storage", ["own", "shared"])
@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_a_follower_of_a_deleted_topic_is_told(used: bool, storage: str) -> None:
    async def main() -> None:
        async with await opened() as log:
            topic = await log.topic("t", config={"cordwood.storage": storage})
            if used:
                await topic.append(b"0")
            reading = topic.read(start=int(used), follow=True)
            step: asyncio.Future[cordwood.Record] = asyncio.ensure_future(anext(reading))
            while not len(log._engine.waiters):
                await asyncio.sleep(0)
            await log.delete_topic("t")
            with pytest.raises((UnknownTopic, StopAsyncIteration)):
                await step

    run(main)


def test_a_follower_and_those_who_append_are_told_when_a_sync_fails() -> None:
    async def main() -> None:
        files = FaultyFiles(MemoryFiles())
        log = await opened(files)
        topic = await log.topic("t")
        await topic.append(b"0")
        step: asyncio.Future[cordwood.Record] = asyncio.ensure_future(anext(topic.read(start=1, follow=True)))
        while not len(log._engine.waiters):
            await asyncio.sleep(0)
        files.plan(FaultPlan(1, frozenset({"sync"}), errno.EIO))
        appends = (topic.append(b"%d" % i) for i in range(5))
        for found in await asyncio.gather(*appends, return_exceptions=True):
            assert isinstance(found, LogFailed)
        with pytest.raises(LogFailed):
            await step
        with pytest.raises(LogFailed):
            await log.close()
        await log.close()

    run(main)


def test_followers_beside_a_writer_get_what_it_publishes() -> None:
    async def main() -> None:
        files = MemoryFiles()
        async with await opened(files) as log, await opened(files, read_only=True) as reader:
            topic = await log.topic("t", 2, SMALL)
            await topic.append(b"first", partition=1)
            beside = await reader.topic("t")

            async def follow(partition: int) -> list[bytes | None]:
                return [record.value async for record in beside.read(partition, stop=6, follow=True)]

            followers = [asyncio.create_task(follow(i % 2)) for i in range(50)]
            for i in range(12):
                await topic.append(b"%d" % i, partition=i % 2)
            for i, found in enumerate(await asyncio.gather(*followers)):
                assert len(found) == 6
                assert found[0] == [b"0", b"first"][i % 2]
            with pytest.raises(LogClosed):
                await beside.append(b"never")
            stuck = asyncio.create_task(anext(beside.read(1, 7, follow=True)))
            await asyncio.sleep(0)
            await reader.close()
            with pytest.raises(StopAsyncIteration):
                await stuck

    run(main)


# --- Ending, and other loops ---------------------------------------------------------------------


def test_closing_finishes_the_appends_that_were_called_before() -> None:
    async def main() -> None:
        files = MemoryFiles()
        log = await opened(files)
        topic = await log.topic("t")
        appends = [asyncio.create_task(topic.append(b"%d" % i)) for i in range(100)]
        await asyncio.sleep(0)
        await log.close()
        await log.close()
        assert [place.offset for place in await asyncio.gather(*appends)] == list(range(100))
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: topic.append(b""),
            lambda: topic.append_many([(None, b"")]),
            lambda: topic.append_stream([b""]),
            lambda: anext(topic.read()),
            lambda: topic.get(0, 0),
            lambda: topic.get_many(0, [0]),
            lambda: topic.scan().table(),
            lambda: topic.truncate(0, 0),
            lambda: topic.roll(),
            lambda: topic.remove_expired(),
            lambda: topic.snapshots().offsets(),
            lambda: log.topics(),
            lambda: log.topic("t"),
            lambda: log.maintain(),
            lambda: log.checkpoint(),
        ]
        for call in calls:
            with pytest.raises(LogClosed):
                await call()
        with cordwood.open(DATA, files=files) as again:
            assert again.topic("t").high_watermark() == 100

    run(main)


def test_a_stream_that_has_not_ended_is_refused_by_closing_and_leaves_no_file() -> None:
    async def main() -> None:
        files = MemoryFiles()
        log = await opened(files)
        topic = await log.topic("t")
        came, go_on = asyncio.Event(), asyncio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            yield b"x" * 600_000
            came.set()
            await go_on.wait()
            yield b"late"

        stream = asyncio.create_task(topic.append_stream(chunks()))
        await came.wait()
        await log.close()
        assert files.list(f"{DATA}/tmp") == []
        go_on.set()
        with pytest.raises(LogClosed):
            await stream

    run(main)


def test_a_use_from_another_event_loop_is_refused_in_one_sentence() -> None:
    held: list[Any] = []

    async def open_here() -> None:
        log = await opened()
        held.extend([log, await log.topic("t")])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(open_here())
    log, topic = held

    async def use_there() -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: topic.append(b""),
            lambda: topic.append_stream([b""]),
            lambda: anext(topic.read(follow=True)),
            lambda: topic.get(0, 0),
            lambda: anext(aiter(topic.scan())),
            lambda: log.topics(),
            lambda: log.close(),
        ]
        for call in calls:
            with pytest.raises(WrongEventLoop, match="opened on another event loop"):
                await call()

    run(use_there)
    loop.run_until_complete(log.close())
    loop.close()


def test_in_a_forked_child_the_log_is_dead() -> None:
    async def main() -> None:
        async with await opened() as log:
            topic = await log.topic("t")
            log._engine._process = os.getpid() + 1
            try:
                with pytest.raises(LogClosed, match="forked"):
                    await topic.append(b"from the child")
                await log.close()
            finally:
                log._engine._process = os.getpid()
            assert (await topic.append(b"from the parent")).offset == 0

    run(main)


# --- The rest of the interface -------------------------------------------------------------------


def test_begin_refuses_a_start_before_the_first_record_is_read() -> None:
    async def main() -> None:
        async with await opened() as log:
            topic = await log.topic("t")
            await topic.append(b"0")
            for start in (-1, 2):
                with pytest.raises(OffsetOutOfRange):
                    await topic.read(0, start).begin()
            assert [record.value async for record in await topic.read(0, 0).begin()] == [b"0"]

    run(main)


def test_replay_folds_in_a_thread_and_goes_on_from_its_snapshot() -> None:
    async def main() -> None:
        async with await opened() as log:
            topic = await log.topic("t")
            await topic.append_many([(None, b"%d" % i) for i in range(10)])
            here, threads = threading.get_ident(), set[int]()

            def add(total: int, record: cordwood.Record) -> int:
                threads.add(threading.get_ident())
                return total + int(record.value or b"0")

            async def replay(**options: Any) -> cordwood.Replayed[int]:
                return await cordwood.aio.replay(
                    topic, add, 0, encode=lambda n: json.dumps(n).encode(), decode=json.loads, **options
                )

            assert (await replay(save_every=4)).state == 45
            assert await topic.snapshots().offsets() == [4, 8, 10]
            assert (await topic.snapshots().nearest(9)).snapshot is not None
            await topic.append(b"5")
            again = await replay()
            assert (again.state, again.start_offset, again.records) == (50, 10, 1)
            assert here not in threads
            assert await topic.snapshots().keep_newest(1) == 2

    run(main)


def test_a_cancelled_replay_ends_before_its_next_record() -> None:
    async def main() -> None:
        async with await opened() as log:
            topic = await log.topic("t")
            await topic.append_many([(None, b"1")] * 50)
            loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
            folded: list[int] = []

            def fold(state: int, record: cordwood.Record) -> int:
                folded.append(record.offset)
                loop.call_soon_threadsafe(begun.set)
                assert go_on.wait(SECONDS_MAX)
                return state

            replaying = asyncio.create_task(
                cordwood.aio.replay(topic, fold, 0, encode=lambda n: b"", decode=len)
            )
            await begun.wait()
            replaying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await replaying
            go_on.set()
        assert folded == [0]

    run(main)


def test_topics_are_administered_and_maintained() -> None:
    async def main() -> None:
        async with await opened() as log:
            topic = await log.create_topic("t", 1, {"cleanup.policy": "compact", **SMALL})
            for i in range(40):
                await topic.append(b"%d" % i, key=b"%d" % (i % 3))
            await topic.roll()
            await log.maintain(force=True)
            assert await topic.get(0, 0) is None
            assert [record and record.offset for record in await topic.get_many(0, [39, 0])] == [39, None]
            await log.alter_topic("t", partitions=2)
            assert (await log.entry("t")).partitions == 2
            assert (await log.config_of("t")).cleanup_policy == "compact"
            assert (await topic.truncate(0, 39, force=True)).end_offset == 39
            await topic.advance_log_start(0, 38)
            assert (await topic.offsets()).start == 38
            assert await topic.remove_expired() == 0
            assert (await log.offsets_topic()).name in await log.topics()
            await log.delete_topic("t")
            assert "t" not in await log.topics()
            assert log.reports == []

    run(main)


def test_a_broker_starts_and_closes_off_the_loop() -> None:
    async def main() -> None:
        from aiokafka import AIOKafkaProducer

        broker = cordwood.aio.Broker()
        with pytest.raises(LogClosed):
            _ = broker.bootstrap
        async with broker:
            producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
            await producer.start()
            try:
                assert (await producer.send_and_wait("orders", b"axe")).offset == 0
            finally:
                await producer.stop()
            assert (broker.failure, list(broker.addresses.values())) == (None, [broker.bootstrap])
        await broker.close()
        with pytest.raises(CordwoodError):
            await cordwood.aio.Broker(listen="nonsense")

    run(main)


# --- Transactions ----------------------------------------------------------------------------------


async def commit_one(log: cordwood.aio.Log, transactional_id: str, *topics: cordwood.aio.Topic) -> None:
    async with log.transaction(transactional_id) as tx:
        for topic in topics:
            tx.append(topic, transactional_id.encode())


def test_transactions_of_many_tasks_share_their_syncs() -> None:
    """Two rounds for all that begin together: the records, then the decisions."""

    async def main() -> None:
        files = FaultyFiles(MemoryFiles())
        async with await opened(files) as log:
            one, two = await log.topic("one"), await log.topic("two")
            await commit_one(log, "first", one, two)
            before = files.calls.count("sync")
            await asyncio.gather(*(commit_one(log, f"id-{i}", one, two) for i in range(200)))
            syncs = files.calls.count("sync") - before
            print(f"200 concurrent transactions in 2 partitions: {syncs} syncs")
            assert syncs < 60
            assert sorted(await values(one)) == sorted(await values(two))  # type: ignore[type-var]
            assert len(await values(one)) == 201

    run(main)


@pytest.mark.parametrize("sync", ["never", "ms:60000", "each"])
def test_a_commit_is_synced_beside_plain_appends_of_the_same_round(sync: str) -> None:
    """Whatever the sync policy: the appends that come after it in a round must not decide about it."""

    async def main() -> None:
        files = MemoryFiles()
        log = await opened(files, sync=sync)
        topic = await log.topic("t")
        await topic.append(b"first")
        commit = asyncio.create_task(commit_one(log, "x", topic))
        plain = [asyncio.create_task(topic.append(b"plain")) for _ in range(20)]
        await commit
        partition = log.data_directory.partitions.writable("t", 0)
        found = (await topic.read(committed=False).begin()).__aiter__()
        offsets = [record.offset async for record in found if record.value == b"x"]
        assert partition.log_end_offset - partition.unsynced_records > offsets[0]
        await asyncio.gather(*plain)
        await log.close()

    run(main)


def test_a_cancelled_commit_is_finished_if_it_has_begun_and_else_aborted() -> None:
    async def main() -> None:
        files = HookedFiles(MemoryFiles())
        async with await opened(files) as log:
            topic = await log.topic("t")
            await commit_one(log, "x", topic)
            gate = Gate(files, "sync")
            taken = asyncio.create_task(commit_one(log, "x", topic))
            await gate.reached.wait()
            late = await log.transaction("late")
            late.append(topic, b"late")
            waiting = asyncio.create_task(late.commit())
            await asyncio.sleep(0)
            for task in (taken, waiting):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            gate.open()
            await commit_one(log, "x", topic)
            await commit_one(log, "late", topic)
            assert await values(topic) == [b"x", b"x", b"x", b"late"]

    run(main)


def test_closing_finishes_a_commit_that_has_begun() -> None:
    async def main() -> None:
        files = HookedFiles(MemoryFiles())
        log = await opened(files)
        topic = await log.topic("t")
        await commit_one(log, "x", topic)
        gate = Gate(files, "sync")
        taken = asyncio.create_task(commit_one(log, "x", topic))
        await gate.reached.wait()
        closing = asyncio.create_task(log.close())
        await asyncio.sleep(0)
        gate.open()
        await taken
        await closing
        with pytest.raises(LogClosed):
            await commit_one(log, "x", topic)
        async with await opened(files) as again:
            assert await values(await again.topic("t")) == [b"x", b"x"]

    run(main)
