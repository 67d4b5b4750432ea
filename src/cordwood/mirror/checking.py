"""Reading the source again, to compare it with what is here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cordwood.errors import CordwoodError, FrameError, RecordRefused
from cordwood.mirror.batches import cut_batches
from cordwood.mirror.comparing import Comparison, OtherRecords, tail_start
from cordwood.mirror.copying import PART_BYTES, PartitionCopy
from cordwood.mirror.options import MirrorOptions
from cordwood.mirror.report import MirrorCheck
from cordwood.mirror.source import EARLIEST, PASSING_CODES, FetchedPart, MirrorSource, PartitionWish, named
from cordwood.protocol import ApiKey
from cordwood.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from cordwood.records import TopicPartition
from cordwood.storage.log import PartitionLog

#: The batches at the end of a log that are compared before it is continued.
_TAIL_BATCHES = 3
_TOPIC = 2
_POLICY = "cleanup.policy"
_WAIT_MS = 1000


class MirrorChecks:
    """Comparisons with the source. One thread."""

    def __init__(self, source: MirrorSource, options: MirrorOptions) -> None:
        self._source = source
        self._options = options
        self._compacted: dict[str, bool] = {}

    def check_tail(self, copy: PartitionCopy) -> int | None:
        """Compare the end of a log with the source; return the source's leader epoch there, None if unknown.

        Raises:
            CordwoodError: If they differ, or the source cannot be read.
        """
        log = copy.log
        assert log is not None
        start = max(tail_start(log, _TAIL_BATCHES), copy.source_start)
        if start >= log.log_end_offset:
            return None
        return self._compare(copy.place, log, start)[1]

    def check_all(self, copies: Sequence[PartitionCopy]) -> MirrorCheck:
        """Compare everything that the source still has of partitions with their logs.

        Raises:
            CordwoodError: If the source cannot be read.
        """
        starts, wrong = self._source.offsets([each.place for each in copies], EARLIEST)
        differences = [f"{topic}-{number}: {reason}" for (topic, number), reason in wrong.items()]
        batches = identical = rewritten = records = size = 0
        for copy in copies:
            log, place = copy.log, copy.place
            if log is None or place not in starts or self._options.stopped():
                continue
            try:
                start = max(log.log_start_offset, starts[place])
                done, _ = self._compare(place, log, start, before=size)
            except (OtherRecords, RecordRefused, FrameError) as error:
                differences.append(f"{place[0]}-{place[1]}: {error}")
                continue
            identical += done.identical
            rewritten += done.rewritten
            batches += done.identical + done.rewritten
            records += done.records
            size += done.bytes
        return MirrorCheck(batches, identical, rewritten, records, size, tuple(differences))

    def _compare(
        self, place: TopicPartition, log: PartitionLog, start: int, *, before: int = 0
    ) -> tuple[Comparison, int | None]:
        stop, epoch = log.high_watermark, None
        comparison = Comparison(
            log,
            start,
            stop,
            compacted=self._is_compacted(place[0], log),
            compacted_here="compact" in log.config.cleanup_policy,
        )
        wanted = PART_BYTES
        while not comparison.is_done:
            part = self._fetch(place, comparison.position, wanted)
            cut = cut_batches(part.data, comparison.position, log.config.stored_bytes_max)
            if not cut.batches and cut.fault is not None:
                raise cut.fault
            if not cut.batches and cut.missing_bytes > wanted:
                wanted = cut.missing_bytes
                continue
            if not cut.batches:
                # Compaction may have removed the last batches; nothing else takes records from there.
                comparison.end()
            for found in cut.batches:
                if not comparison.is_done:
                    comparison.take(found)
                    if found.header.base_offset < stop:
                        epoch = found.header.leader_epoch
            wanted = PART_BYTES
            self._options.progress(before + comparison.bytes)
        return comparison, epoch

    def _fetch(self, place: TopicPartition, offset: int, bytes_max: int) -> FetchedPart:
        """Return what the source has of one partition from *offset* on, however long its leader takes."""
        cluster, reason = self._source.cluster, "no broker leads it"
        for pause in cluster.pauses():
            node = cluster.leader(*place)
            if node is not None:
                try:
                    part = self._source.fetch(node, [PartitionWish(place, offset, bytes_max)], _WAIT_MS)[
                        place
                    ]
                    if not part.error_code and not part.throttled:
                        return part
                    reason = f"the source says {named(part.error_code)}"
                    if part.error_code and part.error_code not in PASSING_CODES:
                        break
                except OSError as error:
                    reason = f"its leader does not answer: {error}"
            if pause is not None:
                time.sleep(pause)
                cluster.refresh()
        raise CordwoodError(f"{place[0]}-{place[1]} cannot be read again from offset {offset}: {reason}")

    def _is_compacted(self, topic: str, log: PartitionLog) -> bool:
        """Return whether the source compacts a topic; if it does not say, whether that is done here."""
        if topic not in self._compacted:
            request = DescribeConfigsRequest([DescribeConfigsResource(_TOPIC, topic, [_POLICY])])
            answer: DescribeConfigsResponse = self._source.cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, request)
            said = [
                each.value for result in answer.results for each in result.configs if each.name == _POLICY
            ]
            policy = said[0] if said and said[0] is not None else log.config.cleanup_policy
            self._compacted[topic] = "compact" in policy
        return self._compacted[topic]
