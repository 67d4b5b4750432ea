"""Every sync of a running server fails in turn, whoever asked for it: the server says so and ends.

After a failed sync nobody knows what the device holds, so the rule has no exceptions: catalogue, marks,
metadata, chains, snapshots and indexes as well as records. What was acknowledged before is there afterwards.
"""

from __future__ import annotations

import errno
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock

import pytest
from broker.nodes import DATA, BreakableFiles, batch_of, open_on, values_of
from support.asking import Asking
from support.clocks import HookedFiles
from support.patience import SECONDS_MAX, until
from support.sweeps import FULL

import cordwood
from cordwood.disk.files import os_error
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import LogFailed, StorageError
from cordwood.formats.batch import encode_records
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from cordwood.protocol.messages.producers import InitProducerIdRequest
from cordwood.protocol.messages.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from cordwood.server.maintenance import following
from cordwood.storage.chain import follower as chain_following
from cordwood.storage.log import mark_writer as mark_keeper
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.storage.log.producers import keeper as producer_keeper

OK, STORAGE_ERROR = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR
SYNCS = frozenset({"sync", "sync_directory"})
EAGER = {
    "log.retention.check.interval.ms": "10",
    "log.cleaner.backoff.ms": "10",
    "cordwood.metrics.listen": "127.0.0.1:0",
}
SMALL = {"segment_bytes": "300"}
COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", **SMALL}


class FailingSync(HookedFiles):
    """Between `begin` and `end` counts syncs by the kind of file, and fails one of them."""

    def __init__(self, kind: str = "", number: int = 0) -> None:
        """Fail the sync with this *number*, the first is 1, of this *kind*."""
        super().__init__(MemoryFiles())
        self.before = self._count
        self.synced: Counter[str] = Counter()
        self.failed: str | None = None
        self._wanted = (kind, number)
        self._counting = False
        self._counted = Lock()

    def begin(self) -> None:
        self._counting = True

    def end(self) -> None:
        self._counting = False

    def _count(self, call: str, path: str) -> None:
        if call not in SYNCS or not self._counting:
            return
        kind = kind_of(call, path.removeprefix(DATA))
        with self._counted:
            self.synced[kind] += 1
            if (kind, self.synced[kind]) != self._wanted:
                return
            self.failed = f"{call} {path}"
        raise os_error(errno.EIO, path)


class Workload:
    """Everything a server syncs for: each step is tried, and what was acknowledged is noted."""

    def __init__(self, broker: cordwood.Broker) -> None:
        self._broker = broker
        self.values: dict[str, list[bytes]] = {}
        self.created: set[str] = set()
        self.deleted: set[str] = set()

    def run(self) -> None:
        with Asking(self._broker.bootstrap) as client:
            for step in self._steps(client):
                if self._broker.failure is not None:
                    return
                step()
        self._wait(lambda: not self._broker._node.directory.chains.is_behind)

    def _wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not done() and self._broker.failure is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def _steps(self, client: Asking) -> Iterator[Callable[[], object]]:
        yield lambda: self._create(client, "orders", **SMALL)
        yield lambda: self._create(client, "shared", cordwood_storage="shared")
        yield lambda: self._create(client, "gone", **SMALL)
        for number in range(6):
            yield lambda number=number: self._produce(client, "orders", b"order %d" % number * 9)  # type: ignore[misc]
        yield lambda: self._produce(client, "shared", b"shared")
        yield lambda: self._produce(client, "gone", b"gone")
        yield lambda: client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None))
        yield lambda: self._alter(client, "orders")
        yield lambda: self._delete_records(client, "orders", 2)
        yield lambda: self._delete(client, "gone")
        yield lambda: self._delete(client, "shared")
        yield lambda: self._create(client, "latest", **COMPACTED)
        for number in range(8):
            yield lambda number=number: self._compacted(client, b"value %d" % number * 9)  # type: ignore[misc]
        yield self._until_compacted

    def _create(self, client: Asking, topic: str, **settings: str) -> None:
        with suppress(AssertionError):
            client.create(topic, 1, **settings)
            self.created.add(topic)
            self.values[topic] = []

    def _produce(self, client: Asking, topic: str, value: bytes) -> None:
        if topic in self.created and client.produce(topic, batch_of(value)).error_code == OK:
            self.values[topic].append(value)

    def _compacted(self, client: Asking, value: bytes) -> None:
        data = encode_records([(b"key", value)], 1_000)
        if "latest" in self.created and client.produce("latest", data).error_code == OK:
            self.values["latest"] = [value]

    def _until_compacted(self) -> None:
        log = self._broker._node.directory.partitions.opened("latest", 0)
        assert log is not None or self._broker.failure is not None
        if isinstance(log, PartitionLog):
            self._wait(lambda: any(info.generation for info in log.state.sealed))

    def _alter(self, client: Asking, topic: str) -> None:
        change = IncrementalAlterableConfig(name="retention.bytes", config_operation=0, value="100000000")
        resource = IncrementalAlterConfigsResource(resource_type=2, resource_name=topic, configs=[change])
        client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[resource]))

    def _delete_records(self, client: Asking, topic: str, offset: int) -> None:
        asked = DeleteRecordsTopic(
            name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
        )
        answer = client.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[asked], timeout_ms=1000))
        if answer.topics[0].partitions[0].error_code == OK:
            del self.values[topic][:offset]
        else:
            # It may have happened, or not: what comes after is there in either case.
            self.values[topic] = self.values[topic][offset:]

    def _delete(self, client: Asking, topic: str) -> None:
        if topic in self.created:
            told = client.delete(topic)
            self.created.discard(topic)
            del self.values[topic]
            if told == OK:
                self.deleted.add(topic)


@contextmanager
def eager() -> Iterator[None]:
    """Have chains, marks and snapshots synced all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "FOLLOW_SECONDS", 0.005)
        patch.setattr(chain_following, "COMMIT_NS", 0)
        patch.setattr(mark_keeper, "MARK_SYNC_NS", 0)
        patch.setattr(producer_keeper, "SNAPSHOT_BYTES", 100)
        yield


def run(files: FailingSync) -> None:
    """Run the workload on a server on *files*; check what it says and what it leaves."""
    with eager(), ExitStack() as stack:
        broker = cordwood.Broker(DATA, config=EAGER, files=files)
        stack.callback(lambda: suppress_failure(broker))
        files.begin()
        workload = Workload(broker)
        workload.run()
        if files.failed is not None:
            check_said(broker, files.failed)
        # Some are synced at the end only.
        failures: list[StorageError] = []
        try:
            broker.close()
        except StorageError as error:
            failures.append(error)
        assert bool(failures) == (files.failed is not None), f"exit status: {files.failed}"
        # The marker is the last name in meta/. Where that name alone is in doubt, what it says is true.
        if files.failed != f"sync_directory {DATA}/meta":
            assert files.exists(f"{DATA}/meta/clean") == (files.failed is None), files.failed
    files.end()
    check_kept(files, workload)


def check_said(broker: cordwood.Broker, failed: str) -> None:
    """The server knows that a sync failed, and says so to whoever asks whether it is ready."""
    deadline = time.monotonic() + SECONDS_MAX
    while broker.failure is None:
        assert time.monotonic() < deadline, f"nobody noticed that a sync failed: {failed}"
        time.sleep(0.002)
    assert "sync failed" in str(broker.failure), failed
    status, reason = readiness(broker)
    assert status == 503, failed
    assert "nothing more is stored" in reason


def suppress_failure(broker: cordwood.Broker) -> None:
    with suppress(LogFailed):
        broker.close()


def readiness(broker: cordwood.Broker) -> tuple[int, str]:
    assert broker.metrics_url is not None
    url = broker.metrics_url.replace("/metrics", "/readyz")
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def check_kept(files: FailingSync, workload: Workload) -> None:
    """Open the directory again: everything acknowledged is there."""
    with open_on(files) as node:
        assert workload.created <= set(node.directory.topics), files.failed
        assert not workload.deleted & set(node.directory.topics), files.failed
        for topic, values in workload.values.items():
            found = iter(values_of(node, topic))
            assert all(value in found for value in values), f"{topic} lost records: {files.failed}"


def test_whichever_sync_fails_the_server_says_so_and_ends_and_nothing_acknowledged_is_lost() -> None:
    """D2: not the committer's alone. Of each kind of file the first sync fails and one in the middle.

    All of them with CORDWOOD_SWEEP_FULL=1.
    """
    untouched = FailingSync()
    run(untouched)
    cases: Counter[str] = Counter()
    for kind, count in untouched.synced.items():
        for number in range(1, count + 1) if FULL else sorted({1, (count + 1) // 2}):
            files = FailingSync(kind, number)
            run(files)
            cases[kind] += files.failed is not None
    print(f"{cases.total()} syncs failed, of {len(cases)} kinds of files")
    assert len(cases) >= 25
    for name in ("catalogue.log", "mark", "partition.json", "head", "leaves", "producers", ".log", ".oidx"):
        assert any(count and name in kind for kind, count in cases.items()), name


def kind_of(call: str, path: str) -> str:
    """Return what is synced, without the numbers of segments and the names of topics."""
    parts = path.strip("/").split("/")
    if parts[0] == "topics":
        parts[1:3] = ["…"] * len(parts[1:3])
    if parts[0] == "tmp":
        parts[1:] = []
    if parts[-1][:20].isdigit():
        parts[-1] = parts[-1][20:]
    return f"{call} {'/'.join(parts)}"


FAILING_SERVER = """
import errno, sys
sys.path.insert(0, {tests!r})
from broker.nodes import BreakableFiles
from cordwood.cli import main
from cordwood.server import broker
from cordwood.disk import PosixFiles
from cordwood.storage.directory import DataDirectory

files = BreakableFiles(PosixFiles())
described = DataDirectory.describe
def describe(self, holder):
    described(self, holder)
    files.fail("sync", "sync_directory", code=errno.EIO, within={within!r})
DataDirectory.describe = describe
broker.files_of = lambda data, config: files
main(["serve", "--data", sys.argv[1], "--listen", "localhost:0"])
"""


@pytest.mark.parametrize("within", ["meta/catalogue.log", "/chain", "orders/0/segments"])
def test_the_command_ends_with_an_error_whichever_sync_failed(tmp_path: Path, within: str) -> None:
    script = FAILING_SERVER.format(tests=str(Path(__file__).parents[1]), within=within)
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            with Asking(process.stdout.readline().split()[-1]) as client, suppress(AssertionError):
                client.create("orders")
                client.produce("orders", batch_of(b"value"))
            _, errors = process.communicate(timeout=SECONDS_MAX)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "a sync failed; nothing more is stored" in errors
    assert within in errors
    assert errors.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in errors
    assert not tmp_path.joinpath("meta", "clean").exists()


def test_a_catalogue_whose_sync_fails_is_told_to_the_client_and_to_who_asks_for_readiness() -> None:
    files = BreakableFiles()
    broker = cordwood.Broker(DATA, config=EAGER, files=files)
    try:
        # Transactions of an earlier run are looked for first.
        until(lambda: readiness(broker)[0] == 200, "the broker is ready")
        files.fail("sync", code=errno.EIO, within="catalogue.log")
        with Asking(broker.bootstrap) as client, pytest.raises(AssertionError, match="sync failed"):
            client.create("orders")
        status, reason = readiness(broker)
        assert status == 503
        assert "catalogue.log: sync failed" in reason
    finally:
        files.heal()
        with pytest.raises(LogFailed):
            broker.close()
