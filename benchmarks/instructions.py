"""The instructions that the servers of two versions execute for the same requests, counted by Valgrind.

``CORDWOOD_OTHER`` names the ``src`` folder of another checkout, with its kernels compiled. The same bytes go
to a server of each version, one request after the other. A count hardly depends on other work on the machine,
so it tells apart what CPU time does not. Copies and checksums of large buffers are few instructions for many
bytes: a count weighs the work of each request higher than CPU time does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Figure
from benchmarks.versions import GOAL

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.serving import RawClient

from cordwood.formats.batch import BatchOptions, encode_records
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages import CreatableTopic, CreateTopicsRequest
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic

RECORD_BYTES = 1000
#: The versions of the requests, which both sides serve.
PRODUCE_VERSION, FETCH_VERSION, CREATE_VERSION = 9, 12, 5
PRODUCER_ID = 1 << 40
#: Records in a batch, and how many requests with one batch each are counted: 16 KB as the Java client
#: sends by default, and about the largest that a broker takes by default.
BATCHES = {16: 100, 1000: 10}
IDLE_PARTITIONS = 1000
IDLE_FETCHES = 5
#: How often each piece of work is counted. The smallest count is taken: what a server does now and then, and
#: requests that arrive in more pieces, only ever add.
REPEATED = 5
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
START_SECONDS_MAX = 600

_SERVER = """
import sys
import cordwood
# A thread that waits for another one would otherwise look every 5 ms, which is often under Valgrind.
sys.setswitchinterval(60)
with cordwood.Broker(sys.argv[1], config={"cordwood.chain": "false"}) as broker:
    print(broker.bootstrap, flush=True)
    sys.stdin.read()
"""


class CountedServer:
    """A server under Valgrind."""

    def __init__(self, process: subprocess.Popen[str], room: Path) -> None:
        self._process = process
        self._room = room
        self._dumps = 0
        assert process.stdout is not None
        self.bootstrap = process.stdout.readline().strip()

    def count(self, work: Callable[[], object]) -> int:
        """Return how many instructions the server executes during *work*, which is done a few times."""
        self._control("--instr=on")
        counts = []
        for _ in range(REPEATED):
            self._control("--zero")
            work()
            self._control("--dump")
            self._dumps += 1
            dump = self._room / f"counts.{self._dumps}"
            (total,) = (line for line in dump.read_text().splitlines() if line.startswith("totals: "))
            counts.append(int(total.split()[1]))
        self._control("--instr=off")
        return min(counts)

    def _control(self, command: str) -> None:
        subprocess.run(
            ["callgrind_control", command, str(self._process.pid)], check=True, capture_output=True
        )


@contextmanager
def counted(source: str, room: Path) -> Iterator[CountedServer]:
    """Run the server of the version in *source* under Valgrind."""
    tool = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--dump-line=no"]
    command = [*tool, f"--callgrind-out-file={room / 'counts'}", sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        [*command, str(room / "data")],
        env={**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        try:
            yield CountedServer(process, room)
        finally:
            process.stdin.close()


def run() -> list[Figure]:
    """Count each piece of work with both versions; nothing without Valgrind or another version."""
    other = os.environ.get("CORDWOOD_OTHER")
    if other is None:
        print("instructions: skipped, CORDWOOD_OTHER names no other checkout")
        return []
    if shutil.which("callgrind_control") is None:
        print("instructions: skipped, Valgrind is not installed")
        return []
    sides = {"this": str(Path(__file__).parents[1] / "src"), "other": other}
    found = {side: counts(source) for side, source in sides.items()}
    figures = []
    for work, this in found["this"].items():
        before = found["other"][work]
        print(f"{work}: {this:,.0f} instructions, the other version {before:,.0f}")
        figures.append(Figure(f"{work}: instructions now / before", this / before, "x", GOAL, at_most=True))
    return figures


def counts(source: str) -> Mapping[str, float]:
    """Return the instructions for each piece of work, each time for one request."""
    found: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="cordwood-bench-") as room,
        counted(source, Path(room)) as server,
        RawClient(server.bootstrap) as client,
    ):
        client.socket.settimeout(START_SECONDS_MAX)
        for records, requests in BATCHES.items():
            topic = f"batches-{records}"
            create(client, topic, 1)
            size = f"{records * RECORD_BYTES // 1000:,} KB"
            batches = Batches(client, topic, records)
            batches.produce(requests // 4)
            count = server.count(lambda sent=batches, times=requests: sent.produce(times))  # type: ignore[misc]
            found[f"produce {size}"] = count / requests
            for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
                level = "read_committed" if isolation else "read_uncommitted"
                batches.fetch(requests // 4, isolation)
                count = server.count(
                    lambda sent=batches, times=requests, level=isolation: sent.fetch(times, level)  # type: ignore[misc]
                )
                found[f"fetch {size}, {level}"] = count / requests
        create(client, "idle", IDLE_PARTITIONS)
        fill(client, "idle", IDLE_PARTITIONS)
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
            level = "read_committed" if isolation else "read_uncommitted"
            session = IdleSession(client, isolation)
            session.fetch(3)
            count = server.count(lambda idle=session: idle.fetch(IDLE_FETCHES))  # type: ignore[misc]
            found[f"idle session of {IDLE_PARTITIONS:,} partitions, {level}"] = count / IDLE_FETCHES
    return found


def create(client: RawClient, topic: str, partitions: int) -> None:
    """Make a topic."""
    asked = CreatableTopic(topic, partitions, 1, [], [])
    (made,) = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest([asked], 60_000), CREATE_VERSION).topics
    assert made.error_code == 0, made


def fill(client: RawClient, topic: str, partitions: int) -> None:
    """Send one record to each partition."""
    batch = memoryview(encode_records([(None, b"x")], 1_700_000_000_000))
    asked = ProduceTopic(topic, bytes(16), [ProducePartition(number, batch) for number in range(partitions)])
    (answer,) = client.ask(ApiKey.PRODUCE, ProduceRequest(None, -1, 60_000, [asked]), PRODUCE_VERSION).topics
    assert {each.error_code for each in answer.partitions} == {0}


class Batches:
    """One partition, written by an idempotent producer and read, a batch in each request."""

    def __init__(self, client: RawClient, topic: str, records: int) -> None:
        self._client = client
        self._topic = topic
        self._records = records
        self._sent = 0
        self._read = 0
        self._rows = [(None, bytes([number % 251]) * RECORD_BYTES) for number in range(records)]

    def produce(self, times: int) -> None:
        """Send *times* batches."""
        for _ in range(times):
            options = BatchOptions(
                producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=self._sent * self._records
            )
            batch = memoryview(encode_records(self._rows, 1_700_000_000_000, options))
            topic = ProduceTopic(self._topic, bytes(16), [ProducePartition(0, batch)])
            (answer,) = self._client.ask(
                ApiKey.PRODUCE, ProduceRequest(None, -1, 60_000, [topic]), PRODUCE_VERSION
            ).topics
            assert answer.partitions[0].error_code == 0
            self._sent += 1

    def fetch(self, times: int, isolation: int) -> None:
        """Read *times* batches, from the start again after the last one."""
        for _ in range(times):
            offset = self._read % self._sent * self._records
            part = FetchPartition(0, fetch_offset=offset, max_bytes=1)
            topic = FetchTopic(self._topic, bytes(16), [part])
            request = FetchRequest(-1, 60_000, 1, 1 << 20, isolation, 0, -1, [topic], [], "")
            (answer,) = self._client.ask(ApiKey.FETCH, request, FETCH_VERSION).topics
            assert answer.partitions[0].error_code == 0
            assert sum(len(each) for each in answer.partitions[0].records) > self._records * RECORD_BYTES
            self._read += 1


class IdleSession:
    """A fetch session of a consumer whose partitions get no records."""

    def __init__(self, client: RawClient, isolation: int) -> None:
        self._client = client
        self._isolation = isolation
        self._epoch = 0
        self._id = 0
        self._ask(
            [FetchPartition(number, fetch_offset=1, max_bytes=1 << 20) for number in range(IDLE_PARTITIONS)]
        )

    def fetch(self, times: int) -> None:
        """Fetch *times*, each time until there is nothing after a millisecond."""
        for _ in range(times):
            self._ask([])

    def _ask(self, partitions: list[FetchPartition]) -> None:
        topics = [FetchTopic("idle", bytes(16), partitions)] if partitions else []
        request = FetchRequest(-1, 1, 1, 1 << 20, self._isolation, self._id, self._epoch, topics, [], "")
        answer = self._client.ask(ApiKey.FETCH, request, FETCH_VERSION)
        assert answer.error_code == 0
        assert bool(answer.topics) == bool(partitions)
        self._id = answer.session_id
        self._epoch += 1
