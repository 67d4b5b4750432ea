"""Committed offsets of groups: asked of the source, and stored in the topic of offsets here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from cordwood.broker import Node
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.broker.groups import Committed, OffsetKey, offsets_topic
from cordwood.errors import CordwoodError
from cordwood.formats import encode_records
from cordwood.mirror.options import MirrorOptions, matches
from cordwood.mirror.report import MirroredGroup
from cordwood.mirror.source import named
from cordwood.protocol import ApiKey, ErrorCode
from cordwood.protocol.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from cordwood.records import TopicPartition
from cordwood.wire_client import KafkaCluster

#: The newest versions that ask for one group; every broker has them.
_ONE_COORDINATOR, _ONE_GROUP = 3, 7
_GROUP = 0
_PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}
#: The epochs of leaders here are not those of the source, and a wrong one would stop a consumer.
_NO_EPOCH = -1
#: Rows of one batch.
_ROWS_MAX = 1000

GroupOffsets = dict[TopicPartition, tuple[int, str]]
"""The committed offset of a group in each partition, and its metadata."""


def group_names(cluster: KafkaCluster, patterns: tuple[str, ...]) -> list[str]:
    """Return the groups of all brokers that match *patterns*.

    Raises:
        CordwoodError: If a broker does not answer, or refuses.
    """
    found: set[str] = set()
    for node in cluster.nodes:
        answer: ListGroupsResponse = _patiently(
            cluster, lambda node=node: (node, ApiKey.LIST_GROUPS, ListGroupsRequest())
        )
        if answer.error_code:
            raise CordwoodError(f"the source does not list its groups: {named(answer.error_code)}")
        found.update(each.group_id for each in answer.groups if matches(each.group_id, patterns))
    return sorted(found)


def committed_offsets(cluster: KafkaCluster, group: str) -> GroupOffsets:
    """Return what a group has committed.

    Raises:
        CordwoodError: If its coordinator does not answer, or refuses.
    """

    def request() -> tuple[int, ApiKey, Any, int]:
        asked = FindCoordinatorRequest(key=group, key_type=_GROUP)
        found: FindCoordinatorResponse = cluster.ask_any(ApiKey.FIND_COORDINATOR, asked, _ONE_COORDINATOR)
        if found.error_code in _PASSING:
            raise ConnectionError(named(found.error_code))
        if found.error_code:
            raise CordwoodError(
                f"the source names no coordinator of group {group}: {named(found.error_code)}"
            )
        fetch = OffsetFetchRequest(group_id=group, topics=None, require_stable=False)
        return found.node_id, ApiKey.OFFSET_FETCH, fetch, _ONE_GROUP

    answer: OffsetFetchResponse = _patiently(cluster, request)
    if answer.error_code:
        raise CordwoodError(
            f"the source does not show the offsets of group {group}: {named(answer.error_code)}"
        )
    return {
        (topic.name, each.partition_index): (each.committed_offset, each.metadata or "")
        for topic in answer.topics
        for each in topic.partitions
        if not each.error_code and each.committed_offset >= 0
    }


def _patiently(cluster: KafkaCluster, request: Any) -> Any:
    """Return the answer to what *request* returns: node, API, body and newest version."""
    for pause in cluster.pauses():
        try:
            answer = cluster.ask(*request())
            if answer.error_code not in _PASSING:
                return answer
            reason = named(answer.error_code)
        except OSError as error:
            reason = str(error)
        if pause is None:
            raise CordwoodError(f"the groups of {cluster.address} cannot be read: {reason}")
        time.sleep(pause)
        cluster.refresh()
    raise AssertionError


class GroupCopies:
    """The groups of a mirror. One thread."""

    def __init__(self, cluster: KafkaCluster, node: Node, options: MirrorOptions) -> None:
        self._cluster = cluster
        self._node = node
        self._options = options
        #: What groups have committed here, before this run; None until that is read.
        self._before: dict[str, GroupOffsets] | None = None
        self._stored: dict[str, GroupOffsets] = {}
        self._read: dict[str, GroupOffsets] = {}
        self._reports: dict[str, MirroredGroup] = {}

    def read(self) -> None:
        """Ask the source for all offsets. What they count is to be copied before `store`."""
        if self._options.groups:
            names = group_names(self._cluster, self._options.groups)
            self._read = {name: committed_offsets(self._cluster, name) for name in names}

    def store(self, ends: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Store the offsets that were read; *ends* are those of the mirrored partitions. Durable on return.

        One that lies beyond the end is left out, and so is one of a partition that is not mirrored, and one
        that would take a group back which has consumed more here.
        """
        rows: list[tuple[bytes, bytes]] = []
        for group, offsets in self._read.items():
            left, stored = list[str](), self._stored.setdefault(group, {})
            before = self._committed_before().get(group, {})
            for place, (offset, metadata) in sorted(offsets.items()):
                end = ends.get(place)
                known = stored.get(place, before.get(place))
                if end is None:
                    left.append(f"{place[0]}-{place[1]} is not mirrored")
                elif offset > end:
                    left.append(f"{place[0]}-{place[1]} ends at {end}, before {offset}")
                elif self._is_further(group, place, offset):
                    left.append(f"{place[0]}-{place[1]} is at {before[place][0]} here, beyond {offset}")
                else:
                    if known != (offset, metadata):
                        committed = Committed(offset, _NO_EPOCH, metadata, now_ms)
                        key = offsets_topic.offset_key(OffsetKey(group, *place))
                        rows.append((key, offsets_topic.offset_value(committed)))
                    stored[place] = offset, metadata
            if stored or offsets:
                self._reports[group] = MirroredGroup(group, len(stored), tuple(left))
        self._append(rows, now_ms)

    def _is_further(self, group: str, place: TopicPartition, offset: int) -> bool:
        """Return whether an offset was committed here before this run that is beyond *offset*.

        What this run has stored follows the source, also back.
        """
        if self._options.reset_groups or place in self._stored[group]:
            return False
        before = self._committed_before().get(group, {}).get(place)
        return before is not None and before[0] > offset

    def _committed_before(self) -> Mapping[str, GroupOffsets]:
        if self._before is None:
            self._before = {}
            for key, value in self._node.read_offsets_topic().rows():
                with contextlib.suppress(ValueError):
                    whose = offsets_topic.decode_key(key)
                    if isinstance(whose, OffsetKey) and value is not None:
                        found = offsets_topic.decode_offset(value)
                        theirs = self._before.setdefault(whose.group, {})
                        theirs[whose.topic, whose.partition] = found.offset, found.metadata
        return self._before

    def _append(self, rows: list[tuple[bytes, bytes]], now_ms: int) -> None:
        if not rows:
            return
        self._node.topics.ensure_internal(OFFSETS_TOPIC)
        for first in range(0, len(rows), _ROWS_MAX):
            data = encode_records(rows[first : first + _ROWS_MAX], now_ms)
            placed = self._node.append(OFFSETS_TOPIC, 0, memoryview(data))
        placed.log.commit(placed.next_offset)

    def reports(self) -> tuple[MirroredGroup, ...]:
        """Return what was stored of each group."""
        return tuple(self._reports[name] for name in sorted(self._reports))
