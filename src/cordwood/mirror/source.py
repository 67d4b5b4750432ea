"""What is asked of the partitions of the source."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from cordwood.kernels import Buffer
from cordwood.protocol import ApiKey, ErrorCode
from cordwood.protocol.messages import (
    EpochEndOffset,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    fetch,
    offsets,
)
from cordwood.records import TopicPartition
from cordwood.wire_client import KafkaCluster

#: Timestamps of ListOffsets that mean something else.
LATEST, EARLIEST, EARLIEST_LOCAL = -1, -2, -4
#: The first version of ListOffsets that knows EARLIEST_LOCAL.
_LOCAL_VERSION = 8
#: The bytes of one answer, about: a larger batch comes whole nevertheless.
ANSWER_BYTES = 16 << 20
#: Errors that pass once there is a leader, or once it is known who it is.
PASSING_CODES = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class PartitionWish(NamedTuple):
    """From which offset a partition is to be read, and about how many bytes.

    A leader with another epoch than ``leader_epoch`` refuses; -1 is any.
    """

    place: TopicPartition
    offset: int
    bytes_max: int
    leader_epoch: int = -1


class FetchedPart(NamedTuple):
    """What the source answered for one partition; ``throttled`` says that it may have held records back."""

    error_code: int
    high_watermark: int
    log_start: int
    data: Buffer
    throttled: bool


def named(code: int) -> str:
    """Return Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


class MirrorSource:
    """The partitions of a cluster. One thread."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster

    def by_leader(self, places: Collection[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Return *places* by the node that leads them; those without a leader are left out."""
        found: dict[int, list[TopicPartition]] = {}
        for place in places:
            node = self.cluster.leader(*place)
            if node is not None:
                found.setdefault(node, []).append(place)
        return found

    def offsets(
        self, places: Collection[TopicPartition], timestamp: int
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
        """Return the offset of each partition for *timestamp*, and why there is none for the others.

        Leaders are waited for.

        Raises:
            CordwoodError: If no broker answers.
        """
        found: dict[TopicPartition, int] = {}
        wrong: dict[TopicPartition, str] = {}
        for pause in self.cluster.pauses():
            wrong = self._ask_offsets([each for each in places if each not in found], timestamp, found)
            if not wrong or pause is None:
                break
            time.sleep(pause)
            self.cluster.refresh()
        return found, wrong

    def _ask_offsets(
        self, places: Sequence[TopicPartition], timestamp: int, found: dict[TopicPartition, int]
    ) -> dict[TopicPartition, str]:
        wrong = dict.fromkeys(places, "no broker leads it")
        for node, theirs in self.by_leader(places).items():
            topics: dict[str, list[ListOffsetsPartition]] = {}
            for topic, number in theirs:
                asked = ListOffsetsPartition(partition_index=number, timestamp=timestamp)
                topics.setdefault(topic, []).append(asked)
            request = ListOffsetsRequest(
                replica_id=-1,
                topics=[offsets.ListOffsetsTopic(name, partitions) for name, partitions in topics.items()],
                timeout_ms=int(self.cluster.seconds * 1000),
            )
            try:
                answer: ListOffsetsResponse = self.cluster.ask(node, ApiKey.LIST_OFFSETS, request)
            except OSError as error:
                wrong.update(dict.fromkeys(theirs, f"its leader does not answer: {error}"))
                continue
            for each in answer.topics:
                for one in each.partitions:
                    place = (each.name, one.partition_index)
                    if one.error_code:
                        wrong[place] = f"the source says {named(one.error_code)}"
                    elif place in wrong and one.offset >= 0:
                        found[place] = one.offset
                        del wrong[place]
        return wrong

    def is_local(self, place: TopicPartition, offset: int) -> bool:
        """Return whether the records of a partition from *offset* on are on the disk of its leader.

        Others are in tiered storage, which may not answer in time. Raises OSError if the leader is gone.
        """
        node = self.cluster.leader(*place)
        if node is None:
            return False
        if self.cluster.version(node, ApiKey.LIST_OFFSETS) < _LOCAL_VERSION:
            return True
        found: dict[TopicPartition, int] = {}
        wrong = self._ask_offsets([place], EARLIEST_LOCAL, found)
        return place not in wrong and found[place] <= offset

    def fetch(
        self, node: int, wishes: Sequence[PartitionWish], wait_ms: int
    ) -> dict[TopicPartition, FetchedPart]:
        """Return what broker *node* has of some partitions. It waits up to *wait_ms* for records.

        Raises:
            OSError: If it does not answer.
            CordwoodError: If it answers with something else.
        """
        topics: dict[str, list[fetch.FetchPartition]] = {}
        for wish in wishes:
            asked = fetch.FetchPartition(
                index=wish.place[1],
                current_leader_epoch=wish.leader_epoch,
                fetch_offset=wish.offset,
                max_bytes=wish.bytes_max,
            )
            topics.setdefault(wish.place[0], []).append(asked)
        ids = {name: self.cluster.topics[name].wire_id for name in topics}
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max(ANSWER_BYTES, *(wish.bytes_max for wish in wishes)),
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[fetch.FetchTopic(name, ids[name], partitions) for name, partitions in topics.items()],
            rack_id="",
        )
        # Brokers without ids of topics know older versions only, which name them.
        at_most = None if all(map(any, ids.values())) else _BY_NAME
        answer: FetchResponse = self.cluster.ask(
            node, ApiKey.FETCH, request, at_most, more_seconds=wait_ms / 1000
        )
        names = {wire_id: name for name, wire_id in ids.items()}
        found: dict[TopicPartition, FetchedPart] = {}
        for topic in answer.topics:
            name = topic.name or names.get(bytes(topic.topic_id), "")
            for each in topic.partitions:
                found[name, each.index] = _part(each, throttled=answer.throttle_time_ms > 0)
        code = answer.error_code
        return {
            wish.place: found.get(wish.place, FetchedPart(code or -1, -1, -1, b"", False)) for wish in wishes
        }

    def epoch_end(self, place: TopicPartition, epoch: int) -> EpochEndOffset | None:
        """Return where leader epoch *epoch* ends at the source; None if that cannot be known now.

        Raises:
            OSError: If the leader does not answer.
        """
        node = self.cluster.leader(*place)
        if node is None:
            return None
        asked = offsets.OffsetForLeaderTopic(
            place[0], [OffsetForLeaderPartition(partition=place[1], leader_epoch=epoch)]
        )
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[asked])
        answer: OffsetForLeaderEpochResponse = self.cluster.ask(node, ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
        for topic in answer.topics:
            for each in topic.partitions:
                if (topic.topic, each.partition) == place and not each.error_code:
                    return each
        return None


_BY_NAME = 12


def _part(answer: FetchPartitionResponse, *, throttled: bool) -> FetchedPart:
    pieces = answer.records
    data: Buffer = pieces[0] if len(pieces) == 1 else b"".join(map(bytes, pieces))
    return FetchedPart(answer.error_code, answer.high_watermark, answer.log_start_offset, data, throttled)


def leader_epochs(cluster: KafkaCluster) -> Mapping[TopicPartition, int]:
    """Return the leader epoch of each partition, as of the last refresh; -1 where brokers have none."""
    return {
        (topic.name, number): epoch
        for topic in cluster.topics.values()
        for number, (_, epoch) in topic.leaders.items()
    }
