"""A key goes to the partition that every Kafka client would send it to."""

from __future__ import annotations

from array import array
from typing import Any

import aiokafka.partitioner as aiokafka_partitioner
import kafka.partitioner.default as kafka_partitioner
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cordwood import kernels
from cordwood.broker.partitioner import partition_for_key
from cordwood.formats import columns
from cordwood.kernels import BinaryBuffers, reference

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


@pytest.mark.parametrize("kernel", [kernels, reference])
@pytest.mark.parametrize("key", JAVA)
def test_murmur2_is_what_the_java_client_computes(kernel: Any, key: bytes) -> None:
    assert kernel.murmur2(key) == JAVA[key] & MASK


@given(keys)
@example(b"")
@example(b"\xff" * 7)
def test_murmur2_is_what_two_other_clients_compute(key: bytes) -> None:
    for kernel in (kernels, reference):
        assert kernel.murmur2(key) == kafka_partitioner.murmur2(key) & MASK
        assert kernel.murmur2(key) == aiokafka_partitioner.murmur2(key) & MASK


@settings(deadline=None)
@given(st.lists(st.none() | keys, max_size=30), st.integers(1, 1000))
def test_a_column_of_keys_goes_where_each_of_them_does(column: list[bytes | None], partitions: int) -> None:
    expected = [7 if key is None else partition_for_key(key, partitions) for key in column]
    for kernel in (kernels, reference):
        found = kernel.partition_keys(buffers_of(column), len(column), partitions, 7)
        assert memoryview(found).cast("i").tolist() == expected


@pytest.mark.parametrize("kernel", [kernels, reference])
def test_a_column_that_lies_about_itself_is_refused(kernel: Any) -> None:
    with pytest.raises(ValueError, match="shorter than 3 rows"):
        kernel.partition_keys(buffers_of([b"a", b"b"]), 3, 4, 0)
    with pytest.raises(ValueError, match="do not lie within"):
        kernel.partition_keys(BinaryBuffers(None, array("i", [0, 9]).tobytes(), b"abc", 0), 1, 4, 0)
    with pytest.raises(ValueError, match="0 partitions"):
        kernel.partition_keys(buffers_of([b"a"]), 1, 0, 0)


def buffers_of(column: list[bytes | None]) -> BinaryBuffers:
    """Return the column as Arrow lays it out."""
    return columns.binary_column(pa.array(column, pa.binary()))


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
