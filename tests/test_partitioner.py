"""A key goes to the partition that every Kafka client would send it to."""

from __future__ import annotations

import aiokafka.partitioner as aiokafka_partitioner
import kafka.partitioner.default as kafka_partitioner
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cordwood.broker.partitioner import murmur2, partition_for_key

MASK = 0xFFFFFFFF
keys = st.binary(max_size=64) | st.binary(min_size=200, max_size=300)

# UtilsTest.testMurmur2 of Apache Kafka: what the Java client computes.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", JAVA)
def test_murmur2_is_what_the_java_client_computes(key: bytes) -> None:
    assert murmur2(key) == JAVA[key] & MASK


@given(keys)
@example(b"")
@example(b"\xff" * 7)
def test_murmur2_is_what_two_other_clients_compute(key: bytes) -> None:
    assert murmur2(key) == kafka_partitioner.murmur2(key) & MASK
    assert murmur2(key) == aiokafka_partitioner.murmur2(key) & MASK


class Cluster:
    """As much of kafka-python's metadata as its partitioner asks for."""

    def __init__(self, partitions: int) -> None:
        self._partitions = set(range(partitions))

    def topics(self) -> set[str]:
        return {"orders"}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return self._partitions

    available_partitions_for_topic = partitions_for_topic


@given(keys, st.integers(1, 1000))
@example(b"", 1)
def test_a_key_goes_where_two_other_clients_send_it(key: bytes, partitions: int) -> None:
    chosen = partition_for_key(key, partitions)
    theirs = kafka_partitioner.DefaultPartitioner()
    assert chosen == theirs.partition("orders", key, key, b"", b"", Cluster(partitions))
    everything = list(range(partitions))
    assert chosen == aiokafka_partitioner.DefaultPartitioner()(key, everything, everything)
