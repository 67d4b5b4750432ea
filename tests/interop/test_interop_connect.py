"""Kafka Connect in distributed mode: two workers with connectors that read and write files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from interop.brokers import Broker, reported
from interop.connecting import ConnectWorker, connect_worker
from interop.copying import CommittedReader
from interop.frameworks import SECTION
from interop.kafka_jars import KAFKA_VERSION
from interop.report import Report
from support.patience import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

NAME = "Kafka Connect"
LINES = 2000
SINK_SECONDS_MAX = 300.0


def test_connect_copies_a_file_over_a_topic_to_another(
    broker: Broker, report: Report, tmp_path: Path
) -> None:
    """Over kill -9 of the broker and of each worker no line is lost; a sink without offsets starts over."""
    read, written, count = tmp_path / "read.txt", tmp_path / "written.txt", 0

    def more() -> None:
        nonlocal count
        with read.open("a") as file:
            file.writelines(f"line {number}\n" for number in range(count, count + LINES))
        count += LINES

    with (
        reported(report, broker, NAME, KAFKA_VERSION, "file source and sink; all killed", SECTION),
        ExitStack() as stack,
    ):
        workers = [stack.enter_context(connect_worker(broker.bootstrap, tmp_path, name)) for name in "ab"]
        more()
        workers[0].configure("source", _SOURCE | {"file": str(read)})
        workers[0].configure("sink", _SINK | {"file": str(written)})
        _until_written(written, count, workers)
        more()
        broker.restart(kill=True)
        _until_written(written, count, workers)
        for worker in workers:
            # Not while the sink writes: it does not end what it leaves off in the middle of a line.
            worker.stop(kill=True)
            more()
            _until_written(written, count, workers)
            worker.start()
        more()
        broker.restart()
        _until_written(written, count, workers)
        for connector in ("source", "sink"):
            assert workers[0].ask("GET", f"connectors/{connector}/offsets")["offsets"], connector

        workers[0].ask("PUT", "connectors/sink/stop")
        workers[0].ask("DELETE", "connectors/sink/offsets")
        written.unlink()
        workers[0].ask("PUT", "connectors/sink/resume")
        _until_written(written, count, workers)
        for worker in workers:
            worker.stop()
        with CommittedReader(broker.bootstrap, "lines", 1) as reader:
            reader.read_to_end()
            (values,) = reader.values
        # A worker that is killed did not commit how far it came: lines may come again, none is missing.
        expected = [f"line {number}" for number in range(count)]
        assert list(dict.fromkeys(value.decode() for value in values)) == expected
        assert list(dict.fromkeys(written.read_text().splitlines())) == expected


#: The worker makes the topic, with the broker's default of replicas.
_SOURCE = {
    "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
    "topic": "lines",
    "tasks.max": "1",
    "topic.creation.default.partitions": "1",
    "topic.creation.default.replication.factor": "-1",
}
_SINK = {
    "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
    "topics": "lines",
    "tasks.max": "1",
}


def _until_written(file: Path, count: int, workers: Sequence[ConnectWorker]) -> None:
    """Wait until the sink wrote each line; no worker may fail meanwhile."""

    def written() -> bool:
        for worker in workers:
            worker.check()
        return file.exists() and len(set(file.read_bytes().splitlines())) >= count

    said = "\n".join(worker.printed()[-3000:] for worker in workers)
    until(written, f"{count} lines were written\n{said}", SINK_SECONDS_MAX, pause=0.2)
