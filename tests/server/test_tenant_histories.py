"""Tenants that do at random what clients do, all with the same names, each held to a model of its own."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.asking import Asking, records_in
from support.groups import commit, fetch_offsets, wait_until_loaded
from support.seeds import seed_or
from support.tenant_requests import LISTEN, LISTING, ORGS, SETTINGS, TOPIC_RESOURCE

from cordwood import Broker
from cordwood.disk.memory import MemoryFiles
from cordwood.formats import batch
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages import configs, groups, topics

TOPICS, GROUPS = ("orders", "orders-2", "payments"), ("readers", "writers")
OPERATIONS = int(os.environ.get("CORDWOOD_TENANT_OPERATIONS", "300"))
RESTART_EVERY = 100
CHECK_EVERY = 20


@dataclass
class Part:
    """A partition: everything that was ever appended, and where it begins now."""

    values: list[bytes] = field(default_factory=list)
    start: int = 0


@dataclass
class Model:
    """What a tenant has done, and so all that it may ever see."""

    topics: dict[str, list[Part]] = field(default_factory=dict)
    segment_ms: dict[str, str] = field(default_factory=dict)
    offsets: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)


class Player:
    """A tenant at random, on a connection of its own."""

    def __init__(self, name: str, rng: random.Random, storage: str) -> None:
        self.name = name
        self.model = Model()
        self.done: Counter[str] = Counter()
        self._rng = rng
        self._storage = storage
        self._number = 0
        self.client: Asking

    def act(self) -> None:
        """Do something that can be done, and see that the answer is right."""
        acts: list[Callable[[str], None]] = [self._produce, self._produce, self._fetch, self._commit]
        acts += [self._delete_records, self._alter, self._add_partition, self._delete, self._forget]
        topic = self._rng.choice(TOPICS)
        act = self._rng.choice(acts)
        if topic not in self.model.topics:
            self._missing(topic)
            act = self._create
        act(topic)
        self.done[act.__name__.strip("_")] += 1

    def _missing(self, topic: str) -> None:
        """Whoever else has one of that name, here is none."""
        (found,) = self.client.topics(topic)
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self.client.delete(topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self.client.offset_at(topic, -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _create(self, topic: str) -> None:
        partitions = self._rng.randint(1, 2)
        segment_ms = str(self._rng.randint(10**6, 10**7))
        self.client.create(topic, partitions, segment_ms=segment_ms, cordwood_storage=self._storage)
        self.model.topics[topic] = [Part() for _ in range(partitions)]
        self.model.segment_ms[topic] = segment_ms

    def _delete(self, topic: str) -> None:
        if self._rng.random() < 0.5:
            return
        assert self.client.delete(topic) == 0
        del self.client.ids[topic], self.model.topics[topic], self.model.segment_ms[topic]
        for group in list(self.model.offsets):
            left = {place: at for place, at in self.model.offsets[group].items() if place[0] != topic}
            self._set_offsets(group, left)

    def _set_offsets(self, group: str, left: dict[tuple[str, int], int]) -> None:
        self.model.offsets[group] = left
        if not left:
            del self.model.offsets[group]

    def _any(self, topic: str) -> tuple[int, Part]:
        return self._rng.choice(list(enumerate(self.model.topics[topic])))

    def _produce(self, topic: str) -> None:
        number, part = self._any(topic)
        values = []
        for _ in range(self._rng.randint(1, 5)):
            self._number += 1
            values.append(f"{self.name}:{topic}:{number}:{self._number}".encode())
        data = batch.encode_records([(b"key", value) for value in values], 1_000)
        answer = self.client.produce(topic, data, number)
        assert (answer.error_code, answer.base_offset) == (0, len(part.values))
        part.values += values

    def _fetch(self, topic: str) -> None:
        number, part = self._any(topic)
        offset = self._rng.randint(part.start, len(part.values))
        answer = self.client.fetch(topic, offset, number)
        assert (answer.error_code, answer.high_watermark) == (0, len(part.values))
        assert answer.log_start_offset == part.start
        read = {record.offset: record.value for record in records_in(answer)}
        for at in range(offset, len(part.values)):
            assert read.pop(at) == part.values[at]
        # A batch comes whole, so some before may have come, too.
        assert all(part.values[at] == value for at, value in read.items())

    def _commit(self, topic: str) -> None:
        number, _ = self._any(topic)
        group, offset = self._rng.choice(GROUPS), self._rng.randint(0, 1000)
        codes = commit(self.client, group, {(topic, number): (offset, 0, self.name)})
        assert set(codes.values()) == {ErrorCode.NONE}
        self.model.offsets.setdefault(group, {})[topic, number] = offset

    def _delete_records(self, topic: str) -> None:
        number, part = self._any(topic)
        offset = self._rng.randint(part.start, len(part.values))
        asked = topics.DeleteRecordsPartition(partition_index=number, offset=offset)
        request = topics.DeleteRecordsRequest(
            topics=[topics.DeleteRecordsTopic(name=topic, partitions=[asked])]
        )
        (answer,) = self.client.ask(ApiKey.DELETE_RECORDS, request).topics[0].partitions
        assert (answer.error_code, answer.low_watermark) == (0, offset)
        part.start = offset

    def _alter(self, topic: str) -> None:
        value = str(self._rng.randint(10**6, 10**7))
        change = configs.IncrementalAlterableConfig(name="segment.ms", config_operation=0, value=value)
        changed = configs.IncrementalAlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[change]
        )
        request = configs.IncrementalAlterConfigsRequest(resources=[changed])
        (answer,) = self.client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
        assert answer.error_code == 0
        self.model.segment_ms[topic] = value

    def _add_partition(self, topic: str) -> None:
        count = len(self.model.topics[topic]) + 1
        if count > 4:
            return
        asked = topics.CreatePartitionsTopic(name=topic, count=count, assignments=None)
        (answer,) = self.client.ask(
            ApiKey.CREATE_PARTITIONS, topics.CreatePartitionsRequest(topics=[asked])
        ).results
        assert answer.error_code == 0
        self.model.topics[topic].append(Part())

    def _forget(self, topic: str) -> None:
        group = self._rng.choice(GROUPS)
        request = groups.DeleteGroupsRequest(groups_names=[group])
        (answer,) = self.client.ask(ApiKey.DELETE_GROUPS, request).results
        known = self.model.offsets.pop(group, None)
        assert answer.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if known is None else ErrorCode.NONE)

    def check(self) -> None:
        """See everything there is, and that it is what was done here."""
        model = self.model
        found = self._list(ApiKey.METADATA).topics
        assert {t.name: len(t.partitions) for t in found} == {n: len(ps) for n, ps in model.topics.items()}
        listed = self._list(ApiKey.DESCRIBE_TOPIC_PARTITIONS).topics
        assert [topic.name for topic in listed] == sorted(model.topics)
        assert {group.group_id for group in self._list(ApiKey.LIST_GROUPS).groups} == set(model.offsets)
        for group, offsets in model.offsets.items():
            expected = {place: (offset, 0, self.name) for place, offset in offsets.items()}
            assert fetch_offsets(self.client, group, None) == expected
        (directory,) = self._list(ApiKey.DESCRIBE_LOG_DIRS).results
        sizes = {topic.name: len(topic.partitions) for topic in directory.topics}
        assert sizes == {name: len(parts) for name, parts in model.topics.items()}
        for topic, parts in model.topics.items():
            assert self._segment_ms(topic) == model.segment_ms[topic]
            for number, part in enumerate(parts):
                answer = self.client.fetch(topic, part.start, number)
                values = [r.value for r in records_in(answer) if r.offset >= part.start]
                assert values == part.values[part.start :]
                assert self.client.offset_at(topic, -1, number).offset == len(part.values)

    def _list(self, key: ApiKey) -> Any:
        version = APIS[key].advertised.last
        return self.client.ask(key, LISTING[key](version), version)

    def _segment_ms(self, topic: str) -> str:
        asked = configs.DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=["segment.ms"]
        )
        request = configs.DescribeConfigsRequest(resources=[asked])
        (result,) = self.client.ask(ApiKey.DESCRIBE_CONFIGS, request).results
        return str(result.configs[0].value)


@pytest.mark.parametrize("storage", ["own", "shared"])
def test_tenants_with_the_same_names_never_meet(storage: str) -> None:
    """No byte, name or count of one reaches another, whatever they do, over restarts."""
    seed = seed_or(20_261_004)
    print(f"seed {seed}")
    rng = random.Random(seed)
    files = MemoryFiles()
    players = [Player(name, rng, storage) for name in ORGS]
    done = restarts = 0
    while done < OPERATIONS:
        with Broker("/data", files=files, listen=LISTEN, config=SETTINGS) as broker:
            for player in players:
                wait_until_loaded(broker.addresses[player.name])
                ids = {} if not restarts else player.client.ids
                player.client = Asking(broker.addresses[player.name])
                player.client.ids = ids
                player.check()
            for _ in range(min(RESTART_EVERY, OPERATIONS - done)):
                rng.choice(players).act()
                done += 1
                if done % CHECK_EVERY == 0:
                    for player in players:
                        player.check()
            for player in players:
                player.client.close()
        restarts += 1
    total = sum((player.done for player in players), Counter[str]())
    print(f"{done} operations of {len(players)} tenants in {restarts} runs: {dict(total)}")
    assert len(total) >= 9
