"""The Spark source and sink beside what Spark can do at best, and beside its own Kafka connector.

Rounds in turn in one session on two cores, the best of each counts, and the processor time of all processes
of Spark is printed beside it. The floor of a scan is a Python source that hands out the same batch again and
again; the floor of a micro-batch is one from such a source, empty, to a sink that does nothing.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import cordwood
from benchmarks.measure import Figure

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from interop.apache_kafka import apache_kafka
from interop.test_interop_spark import pyspark
from interop.toolbox import HERE, ToolMissing, maven_jars
from support.serving import serving

if TYPE_CHECKING:
    import pyarrow as pa

ROUNDS = 5
ROWS = int(os.environ.get("BENCH_ROWS", "10000000"))
#: What a peer is given, which takes longer.
PEER_ROWS = ROWS // 5
VALUE_BYTES = 100
PARTITIONS = 2
#: A micro-batch, and how many of them a run has; the first ones warm up.
BATCH_ROWS, BATCHES, WARM_UP = 10_000, 14, 4
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)


def run() -> list[Figure]:
    """Measure everything, and return the figures beside their goals."""
    figures: list[Figure] = []
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cordwood-bench-")))
        spark = cordwood.spark.session(
            "benchmark",
            master="local[2]",
            config={"spark.ui.enabled": "false", "spark.sql.warehouse.dir": str(room / "warehouse")},
        )
        stack.callback(spark.stop)
        for source in (Constant, Nothing):
            spark.dataSource.register(source)
        parquet = str(room / "rows.parquet")
        rows(spark, ROWS).write.parquet(parquet)
        data = str(room / "data")
        with cordwood.open(data) as log:
            log.topic("orders", partitions=PARTITIONS)
        write_topic(spark.read.parquet(parquet), path=data, topic="orders")
        figures += scans(spark, data, parquet)
        figures += sinks(spark, room, parquet)
        figures += micro_batches(spark, room, data)
        try:
            figures += beside_the_connector(spark, room, parquet)
        except ToolMissing as missing:
            print(f"beside Spark's Kafka connector: not measured, {missing}")
    return figures


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Return rows with a key of 8 bytes and a value of VALUE_BYTES, no two alike."""
    number = F.lpad(F.col("id").cast("string"), 8, "0")
    # Text that does not shrink to nothing: Parquet would win against any log on rows that are all alike.
    value = F.substring(F.sha2(number, 512), 1, VALUE_BYTES)
    return spark.range(0, count, 1, 8).select(
        number.cast("binary").alias("key"), value.cast("binary").alias("value")
    )


def read_topic(spark: SparkSession, schema: str | None = None, **options: str) -> DataFrame:
    """Return a topic as a query sees it."""
    reader = spark.read.format("cordwood").options(**{n.replace("__", "."): v for n, v in options.items()})
    return (reader if schema is None else reader.schema(schema)).load()


def write_topic(frame: DataFrame, **options: str) -> None:
    """Write rows to a topic."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    frame.write.format("cordwood").options(**named).mode("append").save()


def consume(frame: DataFrame) -> None:
    """Read everything and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


# --- Measuring -------------------------------------------------------------------------------------


def best_of(sides: dict[str, Callable[[], object]]) -> dict[str, tuple[float, float]]:
    """Run the sides in turn and return the shortest time of each, and the processor time of that round."""
    best = dict.fromkeys(sides, (float("inf"), 0.0))
    for _ in range(ROUNDS):
        for name, side in sides.items():
            cpu, started = cpu_seconds(), time.perf_counter()
            side()
            best[name] = min(best[name], (time.perf_counter() - started, cpu_seconds() - cpu))
    return best


def cpu_seconds() -> float:
    """Return the processor time of all processes that this one started, those that ended included."""
    children: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            times[int(entry.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        found = children.get(waiting.pop(), [])
        total += sum(times[pid] for pid in found)
        waiting += found
    return total / os.sysconf("SC_CLK_TCK")


def shown(what: str, found: dict[str, tuple[float, float]]) -> list[Figure]:
    """Return what each side took."""
    figures = []
    for name, (seconds, cpu) in found.items():
        figures.append(Figure(f"{what}: {name}", seconds, "s"))
        figures.append(Figure(f"{what}: {name}, processor time", cpu, "s"))
    return figures


def ratio(
    what: str, ours: tuple[float, float], theirs: tuple[float, float], goal: float, *, at_most: bool = True
) -> Figure:
    """Return how long ours took in terms of theirs; where more is better, how often it fits into theirs."""
    value = ours[0] / theirs[0] if at_most else theirs[0] / ours[0]
    return Figure(what, value, "x", goal, at_most)


# --- Scans, sinks, micro-batches --------------------------------------------------------------------


def scans(spark: SparkSession, data: str, parquet: str) -> list[Figure]:
    """Read all columns, and two of them, beside constant batches and Spark's own Parquet."""
    columns = spark.read.format("cordwood").option("path", data).option("subscribe", "orders").load()
    seven = str(Path(parquet).with_name("seven.parquet"))
    columns.write.parquet(seven)
    found = best_of(
        {
            "topic": lambda: consume(read_topic(spark, path=data, subscribe="orders")),
            "constant batches": lambda: consume(spark.read.format("constant").load()),
            "Parquet": lambda: consume(spark.read.parquet(seven)),
            "topic, offset and timestamp": lambda: consume(
                read_topic(spark, "offset long, timestamp timestamp", path=data, subscribe="orders")
            ),
        }
    )
    two, all_seven = found["topic, offset and timestamp"], found["topic"]
    return [
        *shown("scan", found),
        ratio("scan: topic / constant batches", all_seven, found["constant batches"], 1.2),
        ratio("scan: topic / Parquet", all_seven, found["Parquet"], 1.35),
        ratio("scan: offset and timestamp / all seven columns", two, all_seven, 0.5),
    ]


def sinks(spark: SparkSession, room: Path, parquet: str) -> list[Figure]:
    """Write rows to a topic, synced, beside Spark's own Parquet writer."""

    def to_topic() -> None:
        shutil.rmtree(room / "sink", ignore_errors=True)
        with cordwood.open(room / "sink") as log:
            log.topic("copy", partitions=PARTITIONS)
        write_topic(spark.read.parquet(parquet), path=str(room / "sink"), topic="copy")

    def to_parquet() -> None:
        spark.read.parquet(parquet).write.mode("overwrite").parquet(str(room / "copy.parquet"))

    found = best_of({"topic": to_topic, "Parquet": to_parquet})
    shutil.rmtree(room / "sink")
    shutil.rmtree(room / "copy.parquet")
    return [*shown("sink", found), ratio("sink: topic / Parquet", found["topic"], found["Parquet"], 1.3)]


def micro_batches(spark: SparkSession, room: Path, data: str) -> list[Figure]:
    """Move 10,000 rows a micro-batch from topic to topic, beside nothing from nowhere to nowhere."""
    runs: dict[str, list[float]] = {"topic to topic": [], "nothing to nothing": []}
    with cordwood.open(room / "stream") as log:
        log.topic("copy", partitions=PARTITIONS)
    for number in range(ROUNDS):
        source = (
            spark.readStream.format("cordwood")
            .option("path", data)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(BATCH_ROWS))
            .load()
        )
        sink = (
            source.writeStream.format("cordwood").option("path", str(room / "stream")).option("topic", "copy")
        )
        runs["topic to topic"].append(_micro_batch(sink, room / f"topic-{number}"))
        nothing = spark.readStream.format("nothing").load().writeStream.format("nothing")
        runs["nothing to nothing"].append(_micro_batch(nothing, room / f"nothing-{number}"))
    best = {name: min(found) for name, found in runs.items()}
    figures = [Figure(f"micro-batch: {name}", seconds * 1000, "ms") for name, seconds in best.items()]
    value = best["topic to topic"] / best["nothing to nothing"]
    figures.append(Figure("micro-batch: topic to topic / nothing to nothing", value, "x", 1.3, at_most=True))
    return figures


def _micro_batch(writer: Any, checkpoint: Path) -> float:
    """Run a query for some micro-batches and return the seconds of the middle one."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()
    try:
        while True:
            done = [each for each in query.recentProgress if "addBatch" in each["durationMs"]]
            if query.exception() is not None:
                raise query.exception()
            if len(done) >= BATCHES:
                break
            time.sleep(0.05)
    finally:
        query.stop()
    took = [float(each["durationMs"]["triggerExecution"]) for each in done[WARM_UP:]]
    return statistics.median(took) / 1000


class Constant(DataSource):
    """Hands out the same batch over and over: what Spark does with a Python source that does nothing."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "constant"

    def schema(self) -> str:
        """Return the columns of a topic."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return _ConstantReader(schema, ROWS)


class _ConstantReader(DataSourceReader):
    PIECES = 16
    BATCH = 1 << 16

    def __init__(self, schema: StructType, count: int) -> None:
        self._schema = schema
        self._rows = count

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.PIECES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        size = self.BATCH
        numbers = pa.array(np.arange(size))
        arrays = [
            pa.repeat(pa.scalar(b"12345678"), size),
            pa.repeat(pa.scalar(b"." * VALUE_BYTES), size),
            pa.repeat(pa.scalar("orders"), size),
            pa.repeat(pa.scalar(0, pa.int32()), size),
            numbers,
            numbers.cast(pa.timestamp("us", "UTC")),
            pa.repeat(pa.scalar(0, pa.int32()), size),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=to_arrow_schema(self._schema, timezone="UTC"))
        left = self._rows // self.PIECES
        while left > 0:
            yield batch.slice(0, min(left, size))
            left -= size


class Nothing(DataSource):
    """A stream that always has something new and never a row, and a sink that does nothing with it."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nothing"

    def schema(self) -> str:
        """Return the columns of a topic."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader."""
        return _NothingReader()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return the writer."""
        return _NothingWriter()


class _NothingReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        return {"at": start["at"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter(())


class _NothingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


# --- Beside Spark's Kafka connector -------------------------------------------------------------------


def beside_the_connector(spark: SparkSession, room: Path, parquet: str) -> list[Figure]:
    """Scan and write the same rows: ours by path and by address, the connector in Apache Kafka.

    The connector runs in the Spark it was built for, in a process of its own, and takes its turns.
    """
    few = str(room / "few.parquet")
    spark.read.parquet(parquet).limit(PEER_ROWS).write.parquet(few)
    with ExitStack() as stack:
        kafka = stack.enter_context(apache_kafka(room / "kafka"))
        server = stack.enter_context(serving(room / "served", {"num.partitions": str(PARTITIONS)}))
        peer = stack.enter_context(Peer(kafka.bootstrap, few))
        ours = str(room / "few")
        with cordwood.open(ours) as log:
            log.topic("rows", partitions=PARTITIONS)
        write_topic(spark.read.parquet(few), path=ours, topic="rows")
        address = {"kafka__bootstrap__servers": server.bootstrap}
        write_topic(spark.read.parquet(few), topic="rows", **address)
        peer.call("write rows")
        turn = iter(range(1000))

        def to_path() -> None:
            write_topic(spark.read.parquet(few), path=str(room / "written"), topic=f"t{next(turn)}")

        def to_address() -> None:
            write_topic(spark.read.parquet(few), topic=f"t{next(turn)}", **address)

        scan = best_of(
            {
                "topic by path": lambda: consume(read_topic(spark, path=ours, subscribe="rows")),
                "topic by address": lambda: consume(read_topic(spark, subscribe="rows", **address)),
                "Kafka connector": lambda: peer.call("scan rows"),
            }
        )
        sink = best_of(
            {
                "topic by path": to_path,
                "topic by address": to_address,
                "Kafka connector": lambda: peer.call(f"write t{next(turn)}"),
            }
        )
    figures = []
    for what, found in (("scan", scan), ("sink", sink)):
        connector = found["Kafka connector"]
        figures += shown(f"beside the connector, {what}", found)
        figures += [
            ratio(f"{what} by path / Kafka connector", found["topic by path"], connector, 3, at_most=False),
            ratio(
                f"{what} by address / Kafka connector", found["topic by address"], connector, 1, at_most=False
            ),
        ]
    return figures


def connector_environment() -> dict[str, str]:
    """Return where Python and Spark find the connector and the Spark it was built for.

    Raises:
        ToolMissing: If they cannot be had.
    """
    jars, packages = maven_jars(HERE / "spark" / "pom.xml"), pyspark()
    missing = [str(jar) for jar in jars if not (packages / "pyspark" / "jars" / jar.name).exists()]
    return {
        "PYTHONPATH": str(packages),
        "PYSPARK_SUBMIT_ARGS": f"--jars {','.join(missing)} pyspark-shell",
    }


class Peer:
    """Spark with its Kafka connector in a process of its own, which does what it is told."""

    def __init__(self, bootstrap: str, parquet: str) -> None:
        program = Path(__file__).parent / "peers" / "kafka_connector.py"
        self._process = subprocess.Popen(
            [sys.executable, str(program), bootstrap, parquet],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **connector_environment()},
        )
        self.call("hello")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate("end\n")

    def call(self, command: str) -> None:
        """Have a command done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if answer != f"done {command}\n":
            raise RuntimeError(f"{command}: {answer or 'the peer ended'}")
