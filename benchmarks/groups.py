"""Rebalances of a group of 1,000 members, and its changes of protocol: how long they keep the event loop.

The figure is the longest turn of the loop, in CPU time of its thread: what a request of another client waits
for. All members are connections of a process of their own.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cordwood
from benchmarks.measure import Figure
from cordwood.broker.groups.consumer.embedded import encode_assignment
from cordwood.host import process
from cordwood.protocol.apis import ApiKey, decode_response, encode_request
from cordwood.protocol.messages import groups, topics

MEMBERS, PARTITIONS, TOPICS = 1_000, 1_000, 10
GOAL_MS = 50.0
SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "3000",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.consumer.session.timeout.ms": "600000",
}
_NAMES = [f"topic-{number}" for number in range(TOPICS)]
_REBALANCING, _ID_REQUIRED = 27, 79


class LoopWatch:
    """The longest turn of the loop of a broker."""

    def __init__(self, broker: cordwood.Broker) -> None:
        self._loop = broker._loop
        self._last, self.worst = 0.0, 0.0
        self._watching = False

    def _turn(self) -> None:
        now = time.thread_time()
        self.worst, self._last = max(self.worst, now - self._last), now
        if self._watching:
            self._loop.call_soon(self._turn)

    def _begin(self) -> None:
        self._last, self.worst, self._watching = time.thread_time(), 0.0, True
        self._loop.call_soon(self._turn)

    def begin(self) -> None:
        """Begin to watch."""
        self._loop.call_soon_threadsafe(self._begin)

    def end(self) -> float:
        """Stop, and return the longest turn since `begin` in milliseconds."""
        self._watching = False
        return self.worst * 1000


class Member:
    """One connection, which asks and waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self._reader, self._writer = reader, writer
        self.name = f"member-{number:04d}"
        self.id = ""
        self.generation = 0
        self.owned: list[groups.OwnedTopicPartitions] = []

    async def ask(self, key: ApiKey, version: int, body: Any) -> Any:
        """Send a request and return its response."""
        self._writer.writelines(map(bytes, encode_request(key, version, 1, self.name, body)))
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return decode_response(key, version, await self._reader.readexactly(size)).body

    async def close(self) -> None:
        """Disconnect."""
        self._writer.close()
        await self._writer.wait_closed()

    async def join(self, group: str) -> None:
        """Join a classic group and sync, again while it rebalances; as leader, assign something to all."""
        metadata = struct.pack(">hi", 1, TOPICS)
        metadata += b"".join(struct.pack(">h", len(name)) + name.encode() for name in _NAMES) + bytes(8)
        while True:
            request = groups.JoinGroupRequest(
                group_id=group,
                session_timeout_ms=300_000,
                rebalance_timeout_ms=300_000,
                member_id=self.id,
                protocol_type="consumer",
                protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=metadata)],
            )
            joined = await self.ask(ApiKey.JOIN_GROUP, 5, request)
            self.id = joined.member_id
            if joined.error_code:
                assert joined.error_code in (_ID_REQUIRED, _REBALANCING), joined.error_code
                continue
            self.generation = joined.generation_id
            syncing = groups.SyncGroupRequest(
                group_id=group,
                generation_id=self.generation,
                member_id=self.id,
                assignments=[
                    groups.SyncGroupRequestAssignment(
                        member_id=each.member_id,
                        assignment=encode_assignment(1, {_NAMES[number % TOPICS]: [number // TOPICS]}),
                    )
                    for number, each in enumerate(joined.members)
                ],
            )
            synced = await self.ask(ApiKey.SYNC_GROUP, 3, syncing)
            if not synced.error_code:
                return
            assert synced.error_code == _REBALANCING

    async def rebalance(self, group: str) -> None:
        """Join again, once a heartbeat says that the classic group is rebalancing."""
        request = groups.HeartbeatRequest(group_id=group, generation_id=self.generation, member_id=self.id)
        while not (await self.ask(ApiKey.HEARTBEAT, 3, request)).error_code:
            await asyncio.sleep(0.1)
        await self.join(group)

    async def leave(self, group: str) -> None:
        """Leave a classic group."""
        leaving = groups.MemberIdentity(member_id=self.id)
        await self.ask(ApiKey.LEAVE_GROUP, 3, groups.LeaveGroupRequest(group_id=group, members=[leaving]))

    async def beat(self, group: str, assignor: str, *, leave: bool = False) -> None:
        """Send a heartbeat of the consumer protocol."""
        joins = not self.generation
        request = groups.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=self.id,
            member_epoch=-1 if leave else self.generation,
            rebalance_timeout_ms=300_000 if joins else -1,
            subscribed_topic_names=_NAMES if joins else None,
            server_assignor=assignor if joins else None,
            topic_partitions=None if leave else self.owned,
        )
        answer = await self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        assert not answer.error_code, answer.error_message
        self.generation = answer.member_epoch
        if answer.assignment is not None:
            self.owned = answer.assignment.topic_partitions


async def connect(bootstrap: str, count: int = MEMBERS) -> list[Member]:
    """Return *count* members, connected."""
    host, _, port = bootstrap.rpartition(":")
    return [Member(*await asyncio.open_connection(host, int(port)), number) for number in range(count)]


async def classic(bootstrap: str, name: str) -> None:
    """Let all members join, and then, as one has left, join again."""
    members = await connect(bootstrap)
    with _measured(f"{name}: all join"):
        await asyncio.gather(*(member.join(name) for member in members))
    await members[-1].leave(name)
    with _measured(f"{name}: all join again"):
        await asyncio.gather(*(member.rebalance(name) for member in members[:-1]))
    await _disconnect(members)


async def migration(bootstrap: str) -> None:
    """Let a member of the consumer protocol join all members of the classic one, and leave again."""
    members = await connect(bootstrap)
    await asyncio.gather(*(member.join("migration") for member in members))
    (new,) = await connect(bootstrap, 1)
    new.id = "new"
    with _measured("classic to consumer protocol"):
        await new.beat("migration", "uniform")
    with _measured("consumer to classic protocol"):
        await new.beat("migration", "uniform", leave=True)
    await _disconnect([*members, new])


async def consumer(bootstrap: str, assignor: str) -> None:
    """Let all members join, and then take over from ten that have left."""
    members = await connect(bootstrap)
    for member in members:
        member.id = member.name
    with _measured(f"{assignor}: all join"):
        await asyncio.gather(*(member.beat(assignor, assignor) for member in members))
        await _settle(members, assignor)
    with _measured(f"{assignor}: ten leave"):
        await asyncio.gather(*(member.beat(assignor, assignor, leave=True) for member in members[:10]))
        await _settle(members[10:], assignor)
    await _disconnect(members)


async def _disconnect(members: Sequence[Member]) -> None:
    for member in members:
        await member.close()


@contextmanager
def _measured(what: str) -> Iterator[None]:
    """Have the process of the broker measure until the end of the context."""
    for word in ("begin", "end"):
        print(word, what, flush=True)
        sys.stdin.readline()
        if word == "begin":
            yield


async def _settle(members: Sequence[Member], assignor: str) -> None:
    """Send heartbeats of all members until they own all partitions."""
    rounds = 0
    while sum(len(each.partitions) for member in members for each in member.owned) < PARTITIONS:
        await asyncio.gather(*(member.beat(assignor, assignor) for member in members))
        await asyncio.sleep(0.1)
        rounds += 1
        assert rounds < 500, "the group does not settle"


def run() -> list[Figure]:
    """Measure both protocols, both assignors of the consumer protocol, and the change between protocols."""
    process.raise_handle_limit()
    figures = []
    with cordwood.Broker(config=SETTINGS) as broker:
        gc.collect()
        # As `cordwood serve` does.
        gc.freeze()
        watch = LoopWatch(broker)
        command = [sys.executable, "-m", "benchmarks.groups", broker.bootstrap]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            assert clients.stdin is not None
            assert clients.stdout is not None
            for line in clients.stdout:
                word, _, what = line.strip().partition(" ")
                if word == "begin":
                    watch.begin()
                else:
                    name = f"{MEMBERS:,} members, {what}, longest turn of the loop"
                    figures.append(Figure(name, watch.end(), "ms", GOAL_MS, at_most=True))
                clients.stdin.write("\n")
                clients.stdin.flush()
        assert clients.returncode == 0
    return figures


async def _members(bootstrap: str) -> None:
    await _create_topics(bootstrap)
    await classic(bootstrap, "classic")
    await migration(bootstrap)
    for assignor in ("uniform", "range"):
        await consumer(bootstrap, assignor)


async def _create_topics(bootstrap: str) -> None:
    host, _, port = bootstrap.rpartition(":")
    member = Member(*await asyncio.open_connection(host, int(port)), 0)
    asked = [
        topics.CreatableTopic(name=name, num_partitions=PARTITIONS // TOPICS, replication_factor=1)
        for name in _NAMES
    ]
    await member.ask(ApiKey.CREATE_TOPICS, 5, topics.CreateTopicsRequest(topics=asked))


if __name__ == "__main__":
    process.raise_handle_limit()
    asyncio.run(_members(sys.argv[1]))
