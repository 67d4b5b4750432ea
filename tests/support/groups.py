"""Consumer groups for tests: a group event by event, members that talk to a server, and real consumers.

As a program, ``python -m support.groups``, it is one consumer of a real client, to be killed and hung.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from cordwood.broker.groups.actions import (
    Action,
    GroupReply,
    GroupState,
    HeartbeatAnswer,
    Joined,
    JoinRequest,
    Protocol,
    Refusal,
    StoreState,
    Synced,
    Token,
)
from cordwood.broker.groups.group import Group
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from cordwood.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from support.patience import SECONDS_MAX, until
from support.serving import RawClient

SESSION_MS = 10_000
REBALANCE_MS = 30_000
RANGE = {"range": b"topics of the range"}
#: The first version of the API that names topics by their ids.
BY_ID_FROM = 10
NO_OFFSET = (-1, -1, "")
Offsets = Mapping[tuple[str, int], tuple[int, int, str]]


# --- a group event by event ---------------------------------------------------------------------------


def joining(
    member_id: str = "",
    instance: str | None = None,
    *,
    client: str = "member",
    protocols: Mapping[str, bytes] | Sequence[tuple[str, bytes]] = RANGE,
    kind: str = "consumer",
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    id_first: bool = False,
    knows_skip: bool = True,
) -> JoinRequest:
    """Return what a member says to be let in; by default it is let in without being sent for an id."""
    named = protocols.items() if isinstance(protocols, Mapping) else protocols
    return JoinRequest(
        member_id,
        instance,
        client,
        "/127.0.0.1",
        session_ms,
        rebalance_ms,
        kind,
        tuple(Protocol(*each) for each in named),
        id_first,
        knows_skip,
    )


class Stage:
    """A group, a clock, and what everyone was told. `join` and `sync` return None while nobody answers."""

    def __init__(self, *, size_max: int = 1 << 30, initial_delay_ms: int = 0) -> None:
        numbers = itertools.count(1)
        self.group = Group("group", lambda name: f"{name}-{next(numbers)}", size_max, initial_delay_ms)
        self.now = 0
        self.actions: list[Action] = []
        self.unstored: list[StoreState] = []
        self._told: dict[Token, Joined | Synced] = {}
        self._tokens = itertools.count(1)

    def do(self, actions: Iterable[Action]) -> None:
        """Take note of what the group wants done; who is answered twice was answered once too often."""
        for action in actions:
            self.actions.append(action)
            if isinstance(action, StoreState):
                self.unstored.append(action)
            else:
                assert isinstance(action, GroupReply)
                assert not isinstance(action.result, HeartbeatAnswer)
                assert action.token not in self._told, f"{action.token} is answered again: {action.result}"
                self._told[action.token] = action.result

    def join(self, request: JoinRequest, token: Token | None = None) -> Joined | None:
        """Join; the token is the member's to ask for its answer later."""
        token = f"join {next(self._tokens)}" if token is None else token
        self.do(self.group.join(request, token, self.now))
        return self.joined(token)

    def sync(
        self,
        member_id: str,
        assignments: Mapping[str, bytes] | None = None,
        token: Token | None = None,
        *,
        instance: str | None = None,
        generation: int | None = None,
        kind: str | None = "consumer",
        protocol: str | None = None,
    ) -> Synced | None:
        """Ask for an assignment, in the generation there is unless told otherwise."""
        token = f"sync {next(self._tokens)}" if token is None else token
        asked = self.group.generation if generation is None else generation
        given = (assignments or {}).items()
        self.do(self.group.sync(member_id, instance, asked, kind, protocol, given, token, self.now))
        return self.synced(token)

    def joined(self, token: Token) -> Joined | None:
        """Return what a join was answered."""
        told = self._told.get(token)
        assert told is None or isinstance(told, Joined)
        return told

    def synced(self, token: Token) -> Synced | None:
        """Return what a sync was answered."""
        told = self._told.get(token)
        assert told is None or isinstance(told, Synced)
        return told

    def store(self, *, failed: bool = False) -> None:
        """Let the oldest store that is under way come to its end."""
        store = self.unstored.pop(0)
        self.do(self.group.stored(store.generation, failed=failed, now_ms=self.now, token=store.token))

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance: str | None = None
    ) -> Refusal | None:
        asked = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id, instance, asked, self.now)

    def leave(self, member_id: str, instance: str | None = None) -> Refusal | None:
        refusal, actions = self.group.leave(member_id, instance, self.now)
        self.do(actions)
        return refusal

    def until(self, now: int) -> None:
        """Let time go by, and what is due happen when it is."""
        while (deadline := self.group.deadline()) is not None and deadline <= now:
            self.now = max(deadline, self.now)
            self.do(self.group.tick(self.now))
        self.now = now

    def members(self) -> list[str]:
        return list(self.group.members)

    def stable(self, *names: str, static: Collection[str] = (), **each: Any) -> list[str]:
        """Fill the empty group with members of these clients, each with its name for an assignment.

        The first leads. Those in *static* have their names for instance ids.
        """
        for name in names:
            self.join(joining(client=name, instance=name if name in static else None, **each))
            for member in list(self.group.members.values()):
                if member.join is None and self.group.state is GroupState.PREPARING:
                    self.join(joining(member.id, member.instance_id, **each))
        assert self.group.state is GroupState.COMPLETING
        self.settle({member.id: member.client_id.encode() for member in self.group.members.values()})
        return self.members()

    def settle(self, assignments: Mapping[str, bytes] | None = None) -> None:
        """Have all members sync and the generation stored."""
        for member_id, member in list(self.group.members.items()):
            given = assignments if member_id == self.group.leader else None
            self.sync(member_id, given, instance=member.instance_id)
        while self.unstored:
            self.store()
        assert self.group.state is GroupState.STABLE


# --- what consumers say to each other -----------------------------------------------------------------


def subscription(*topics: str) -> bytes:
    """Return what a consumer that reads *topics* has to say to its leader."""
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + named + struct.pack(">i", -1)


# --- members that talk to a server --------------------------------------------------------------------


class RawMember:
    """A member of a group on a connection of its own, in whichever versions it is told to speak."""

    def __init__(
        self,
        address: tuple[str, int] | str,
        group: str,
        *topics: str,
        instance: str | None = None,
        versions: Mapping[ApiKey, int] | None = None,
        kind: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        self._address = address
        self.client = RawClient(address)
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.leader = ""
        self.members: dict[str, bytes] = {}
        self._versions = dict(versions or {})
        self._kind = kind
        self._session_ms, self._rebalance_ms = session_ms, rebalance_ms
        self._protocols = [JoinGroupRequestProtocol(name="range", metadata=subscription(*topics))]

    def __enter__(self) -> RawMember:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def reconnect(self) -> None:
        """Go on with a new connection to the same address, as clients do when their server restarts."""
        self.client.close()
        self.client = RawClient(self._address)

    def version(self, api: ApiKey) -> int:
        return self._versions.get(api, APIS[api].advertised.last)

    def ask(self, api: ApiKey, body: Any) -> Any:
        return self.client.ask(api, body, self.version(api))

    # Joining, in two halves, since the answer comes when all others have joined.

    def ask_for_id(self) -> ErrorCode:
        """Get an id where one is needed: from then on the others wait for us."""
        if self.member_id or self.instance is not None or self.version(ApiKey.JOIN_GROUP) < 4:
            return ErrorCode.NONE
        response = self.ask(ApiKey.JOIN_GROUP, self.join_request())
        self.member_id = response.member_id
        return ErrorCode(response.error_code)

    def send_join(self) -> None:
        """Ask to be let in."""
        self.client.send(ApiKey.JOIN_GROUP, self.version(ApiKey.JOIN_GROUP), self.join_request())

    def join_request(self) -> JoinGroupRequest:
        """Return what is said to be let in."""
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self._kind,
            protocols=self._protocols,
        )

    def joined(self) -> ErrorCode:
        """Wait for the answer to `send_join`."""
        response = self.client.receive(ApiKey.JOIN_GROUP, self.version(ApiKey.JOIN_GROUP))
        code = ErrorCode(response.error_code)
        if response.member_id:
            self.member_id = response.member_id
        if code is ErrorCode.NONE:
            self.generation, self.leader = response.generation_id, response.leader
            self.members = {member.member_id: member.metadata for member in response.members}
        return code

    def join(self) -> ErrorCode:
        """Join, where nobody else has to."""
        code = self.ask_for_id()
        if code not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            return code
        self.send_join()
        return self.joined()

    def send_sync(self, assignments: Mapping[str, bytes] | None = None) -> None:
        """Ask for the assignment, handing them in if we lead."""
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self._kind,
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
        )
        self.client.send(ApiKey.SYNC_GROUP, self.version(ApiKey.SYNC_GROUP), request)

    def synced(self) -> tuple[ErrorCode, bytes]:
        """Wait for the answer to `send_sync`."""
        response = self.client.receive(ApiKey.SYNC_GROUP, self.version(ApiKey.SYNC_GROUP))
        return ErrorCode(response.error_code), bytes(response.assignment)

    def sync(self, assignments: Mapping[str, bytes] | None = None) -> tuple[ErrorCode, bytes]:
        self.send_sync(assignments)
        return self.synced()

    def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        return ErrorCode(self.ask(ApiKey.HEARTBEAT, request).error_code)

    def leave(self) -> ErrorCode:
        identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        request = LeaveGroupRequest(group_id=self.group, member_id=self.member_id, members=[identity])
        response = self.ask(ApiKey.LEAVE_GROUP, request)
        codes = [response.error_code, *(member.error_code for member in response.members)]
        return ErrorCode(next((code for code in codes if code), 0))

    def commit(self, offsets: Mapping[tuple[str, int], int]) -> set[ErrorCode]:
        """Commit by name and return the codes there were."""
        return set(
            commit(
                self.client,
                self.group,
                {place: (offset, -1, "") for place, offset in offsets.items()},
                version=min(self.version(ApiKey.OFFSET_COMMIT), BY_ID_FROM - 1),
                member_id=self.member_id,
                instance=self.instance,
                generation=self.generation,
            ).values()
        )


def wait_until_loaded(address: tuple[str, int] | str) -> None:
    """Return when a server that just started serves groups, as clients wait for it: by asking again."""
    with RawClient(address) as client:
        until(
            lambda: not client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest()).error_code,
            "groups are loaded",
            pause=0,
        )


def commit(
    client: RawClient,
    group: str,
    offsets: Offsets,
    *,
    version: int = BY_ID_FROM - 1,
    member_id: str = "",
    instance: str | None = None,
    generation: int = -1,
    ids: Mapping[str, bytes] | None = None,
) -> dict[tuple[str, int], ErrorCode]:
    """Commit (offset, leader epoch, note) of places; return what each was answered."""
    named: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), (offset, epoch, note) in offsets.items():
        named.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=epoch,
                committed_metadata=note,
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        topics=[
            OffsetCommitRequestTopic(name=topic, topic_id=(ids or {}).get(topic, bytes(16)), partitions=parts)
            for topic, parts in named.items()
        ],
    )
    response = client.ask(ApiKey.OFFSET_COMMIT, request, version)
    assert [len(topic.partitions) for topic in response.topics] == [len(parts) for parts in named.values()]
    return {
        (topic, part.partition_index): ErrorCode(part.error_code)
        for topic, answer in zip(named, response.topics, strict=True)
        for part in answer.partitions
    }


def fetch_offsets(
    client: RawClient,
    group: str,
    places: Iterable[tuple[str, int]] | None,
    *,
    version: int = BY_ID_FROM - 1,
    ids: Mapping[str, bytes] | None = None,
) -> dict[tuple[str, int], tuple[int, int, str]]:
    """Return what a group has committed of *places*, or of all; nothing may go wrong."""
    named: dict[str, list[int]] = {}
    for topic, partition in places or ():
        named.setdefault(topic, []).append(partition)
    by_id = {given: topic for topic, given in (ids or {}).items()}
    if version < 8:
        old = [OffsetFetchRequestTopic(name=name, partition_indexes=each) for name, each in named.items()]
        request = OffsetFetchRequest(group_id=group, topics=None if places is None else old)
        response = client.ask(ApiKey.OFFSET_FETCH, request, version)
        assert response.error_code == 0
        topics = response.topics
    else:
        new = [
            OffsetFetchRequestTopics(
                name=name, topic_id=(ids or {}).get(name, bytes(16)), partition_indexes=each
            )
            for name, each in named.items()
        ]
        asked = OffsetFetchRequestGroup(group_id=group, topics=None if places is None else new)
        (answer,) = client.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=[asked]), version).groups
        assert (answer.group_id, answer.error_code) == (group, 0)
        topics = answer.topics
    assert all(part.error_code == 0 for topic in topics for part in topic.partitions)
    return {
        (topic.name or by_id[topic.topic_id], part.partition_index): (
            part.committed_offset,
            part.committed_leader_epoch,
            part.metadata,
        )
        for topic in topics
        for part in topic.partitions
    }


def replies(actions: Iterable[Action]) -> list[GroupReply]:
    """Return the answers among *actions*."""
    return [action for action in actions if isinstance(action, GroupReply)]


# --- real consumers, each a process of its own --------------------------------------------------------


class ConsumerProcess:
    """A consumer of a real client; what it is given and what it owns is found here as it says so."""

    def __init__(
        self,
        client: str,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        program: Sequence[str] = (sys.executable, "-m", "support.groups"),
        **more: Any,
    ) -> None:
        """Start *program* with everything else as JSON: this module, or one that says and hears the same."""
        told = {"client": client, "bootstrap": bootstrap, "group": group, "topic": topic, **more}
        self.delivered: list[tuple[int, int]] = []
        self.owned: frozenset[int] = frozenset()
        #: Everything it ever owned, one change after the other.
        self.changes: list[frozenset[int]] = []
        self.fenced = False
        self.complaints = ""
        self._ended = False
        # What clients say while their server restarts is of interest only if they fail.
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        tests = Path(__file__).parents[1]
        self.process = subprocess.Popen(
            [*program, json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            cwd=tests,
        )
        self._reader = Thread(target=self._listen, name=f"listens to {group}")
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            what, _, rest = line.rstrip("\n").partition(" ")
            numbers = [int(number) for number in rest.split()]
            if what == "records":
                self.delivered += zip(numbers[::2], numbers[1::2], strict=True)
            elif what == "owns":
                self.owned = frozenset(numbers)
                self.changes.append(self.owned)
            elif what == "fenced":
                self.fenced = True

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End it as kill -9 does: nobody is told."""
        self.process.kill()
        self._end()

    def ask_to_leave(self) -> None:
        """Have it commit, leave and end, the next time that it is given something."""
        assert self.process.stdin is not None
        self.process.stdin.write("leave\n")
        self.process.stdin.flush()

    def left(self) -> int:
        """Wait for it to end and return its exit status."""
        return self._end()

    def _end(self) -> int:
        try:
            self.process.wait(SECONDS_MAX)
        finally:
            self.process.kill()
            self._reader.join()
            self._complaints.seek(0)
            self.complaints = self._complaints.read()
            for pipe in (self.process.stdin, self.process.stdout, self._complaints):
                if pipe is not None:
                    pipe.close()
        self.owned, self._ended = frozenset(), True
        return self.process.returncode

    def close(self) -> None:
        """End it if it has not ended, and let go of it."""
        if not self._ended:
            self.kill()


class _Worker:
    """What all clients do alike: say what is owned and given, and stop when told to."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = told
        self.leaving = Event()
        self._owned: frozenset[int] | None = None
        Thread(target=self._wait_for_the_end, daemon=True).start()

    def _wait_for_the_end(self) -> None:
        sys.stdin.readline()
        self.leaving.set()

    def say(self, *words: object) -> None:
        print(*words, flush=True)

    def note(self, owned: Iterable[int], records: Sequence[tuple[int, int]]) -> None:
        """Say what is owned, if that changed, and what was given."""
        now = frozenset(owned)
        if now != self._owned:
            self._owned = now
            self.say("owns", *sorted(now))
        if records:
            self.say("records", *(number for record in records for number in record))

    def settings(self) -> dict[str, Any]:
        """Return what aiokafka and kafka-python call the same."""
        return {
            "bootstrap_servers": self.told["bootstrap"],
            "group_id": self.told["group"],
            "session_timeout_ms": self.told["session_ms"],
            "heartbeat_interval_ms": self.told["session_ms"] // 10,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "fetch_max_wait_ms": 100,
            "retry_backoff_ms": 50,
            "metadata_max_age_ms": 5_000,
        }


def _consume_confluent(worker: _Worker) -> None:
    import confluent_kafka

    told = worker.told
    settings = {
        "bootstrap.servers": told["bootstrap"],
        "group.id": told["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 100,
        "log_level": 0,
    }
    if told.get("protocol") == "consumer":
        # The broker has the times and the assignors.
        settings |= {"group.protocol": "consumer"}
    else:
        settings |= {
            "partition.assignment.strategy": told.get("assignor", "range"),
            "session.timeout.ms": told["session_ms"],
            "heartbeat.interval.ms": told["session_ms"] // 10,
        }
    if "instance" in told:
        settings["group.instance.id"] = told["instance"]
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([told["topic"]])
    while not worker.leaving.is_set():
        messages = consumer.consume(100, 0.1)
        errors = {error.code() for message in messages if (error := message.error()) is not None}
        if confluent_kafka.KafkaError._FATAL in errors:
            worker.say("fenced")
            break
        given = [(m.partition() or 0, m.offset() or 0) for m in messages if m.error() is None]
        worker.note((place.partition for place in consumer.assignment()), given)
        if given:
            # Not committed, whatever the reason: given again, to us or to another.
            with suppress(confluent_kafka.KafkaException):
                consumer.commit(asynchronous=False)
    consumer.close()


def _consume_kafka_python(worker: _Worker) -> None:
    import kafka
    import kafka.errors
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    owned: set[int] = set()

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            owned.difference_update(place.partition for place in revoked)

        def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            owned.update(place.partition for place in assigned)
            worker.note(owned, ())

    consumer = kafka.KafkaConsumer(
        **worker.settings(),
        partition_assignment_strategy=[RangePartitionAssignor],
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=100,
    )
    consumer.subscribe([worker.told["topic"]], listener=Listener())
    while not worker.leaving.is_set():
        # Without an end: where a poll ends while it joins, version 3.0.12 may forget that it did, sends no
        # heartbeats any more, and does not notice that the group goes on without it.
        try:
            batches = consumer.poll(timeout_ms=1_000_000)
        except kafka.errors.KafkaError:
            # The server is not there; others of its kind wait until it is.
            worker.leaving.wait(0.05)
            continue
        given = [(place.partition, one.offset) for place, records in batches.items() for one in records]
        worker.note((place.partition for place in consumer.assignment()), given)
        if given:
            with suppress(kafka.errors.KafkaError):
                consumer.commit()
    consumer.close()


def _consume_aiokafka(worker: _Worker) -> None:
    asyncio.run(_consume_aiokafka_on_loop(worker))


async def _consume_aiokafka_on_loop(worker: _Worker) -> None:
    import aiokafka
    import aiokafka.errors
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    consumer = aiokafka.AIOKafkaConsumer(
        worker.told["topic"],
        **worker.settings(),
        partition_assignment_strategy=(RangePartitionAssignor,),
    )
    await consumer.start()
    while not worker.leaving.is_set():
        batches = await consumer.getmany(timeout_ms=100)
        given = [(place.partition, one.offset) for place, records in batches.items() for one in records]
        worker.note((place.partition for place in consumer.assignment()), given)
        if given:
            with suppress(aiokafka.errors.KafkaError):
                await consumer.commit()
    await consumer.stop()


CONSUMERS = {
    "confluent-kafka": _consume_confluent,
    "kafka-python": _consume_kafka_python,
    "aiokafka": _consume_aiokafka,
}

if __name__ == "__main__":
    _worker = _Worker(json.loads(sys.argv[1]))
    CONSUMERS[_worker.told["client"]](_worker)
