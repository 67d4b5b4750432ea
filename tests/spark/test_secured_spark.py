"""Spark at a broker that asks who its clients are, over TLS: rows, rights, and no password shown."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.commands import refused, run, said, with_address
from support.secured import USERS, Secured

#: Files of tokens are refused in options, so OAUTHBEARER needs an issuer, which librdkafka asks.
WAYS = ("PLAIN", "SCRAM-SHA-512", "PEM", "PKCS12")
VALUES = [f"value {number}" for number in range(300)]
STAGING = "__cordwood_staging-"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with topic orders. Bela may do what docs/spark.md says that a query needs, dora less."""
    directory = tmp_path_factory.mktemp("secured")
    found = Secured(directory, {"dora": "hidden-dora", "erna": "hidden-erna"})
    with found.broker:
        config = found.properties("PLAIN", directory)
        as_anna = ("--bootstrap", found.addresses["USERS"], "--command-config", config)
        for topic in ("orders", "copies", "described", "other"):
            said("topic", "create", topic, "--partitions", 2, *as_anna)
        said("produce", "-t", "orders", *as_anna, stdin="".join(f"{each}\n" for each in VALUES))
        bela = ("acl", "add", "--allow-principal", "User:bela", *as_anna)
        for operations, resource in (
            (("Read",), ("--topic", "orders")),
            (("Read", "Write", "DescribeConfigs"), ("--topic", "copies")),
            (("Describe",), ("--topic", "described")),
            (("Create", "Write", "Delete"), ("--topic", STAGING, "--resource-pattern-type", "prefixed")),
        ):
            said(*bela, *(part for each in operations for part in ("--operation", each)), *resource)
        dora = ("acl", "add", "--allow-principal", "User:dora", "--operation", "All", *as_anna)
        said(*dora, "--topic", "copies")
        erna = ("acl", "add", "--allow-principal", "User:erna", "--operation", "All", *as_anna)
        for topic in ("orders", "secret-copies", STAGING):
            said(*erna, "--topic", topic, "--resource-pattern-type", "prefixed")
        yield found


@pytest.fixture
def options(secured: Secured, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Return a function that returns the options of a source or sink, in Java's spelling."""

    def given(way: str, user: str = "anna", password: str | None = None, **more: str) -> dict[str, str]:
        password = password or {**USERS, "dora": "hidden-dora"}[user]
        settings = secured.java_settings(way, tmp_path, user, password)
        return {
            "kafka.bootstrap.servers": secured.address(way),
            **{f"kafka.{name}": value for name, value in settings.items()},
            **more,
        }

    return given


def values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def read(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    return spark.read.format("cordwood").options(**given).load()


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_query_reads_and_writes_every_row(
    spark: SparkSession, options: Callable[..., dict[str, str]], way: str
) -> None:
    rows = read(spark, options(way, subscribe="orders"))
    assert values(rows) == sorted(VALUES)
    rows.select("value").write.format("cordwood").mode("append").options(
        **options(way, topic=f"written-{way}")
    ).save()
    assert values(read(spark, options(way, subscribe=f"written-{way}"))) == sorted(VALUES)


def test_a_stream_with_the_rights_on_the_page_publishes_each_row_once(
    spark: SparkSession, options: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """Also if Spark forgets that a batch was committed, and runs it again."""
    checkpoint = tmp_path / "checkpoint"
    scram = "SCRAM-SHA-512"
    source = options(scram, "bela", subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="90")
    sink = options(scram, "bela", topic="copies", checkpointLocation=str(checkpoint))

    def copy() -> None:
        rows = spark.readStream.format("cordwood").options(**source).load().select("value")
        query = rows.writeStream.format("cordwood").options(**sink).trigger(availableNow=True).start()
        query.awaitTermination()

    copy()
    copies = options(scram, "bela", subscribe="copies")
    assert values(read(spark, copies)) == sorted(VALUES)
    commits = checkpoint / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    assert last >= 3
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    copy()
    assert values(read(spark, copies)) == sorted(VALUES)
    shutil.rmtree(checkpoint)


def refusal(spark: SparkSession, work: Callable[[], object]) -> str:
    """Return the message of a query that fails while it is planned: no job began that is tried again."""
    group = str(uuid.uuid4())
    spark.sparkContext.setJobGroup(group, "what must not begin")
    try:
        with pytest.raises(PySparkException) as caught:
            work()
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(group) == []
    message = str(caught.value)
    assert "hidden" not in message
    return message


def test_a_wrong_password_is_said_once_when_a_query_is_planned(
    spark: SparkSession, options: Callable[..., dict[str, str]]
) -> None:
    def wrong(**more: str) -> dict[str, str]:
        # It would hang if it waited until the time for an answer is over.
        patient = {"kafka.default.api.timeout.ms": "3600000", **more}
        return options("SCRAM-SHA-512", password="hidden-wrong", **patient)

    numbers = spark.range(3).selectExpr("cast(id as string) value")
    for work in (
        lambda: read(spark, wrong(subscribe="orders")).collect(),
        lambda: read(spark, wrong(subscribePattern="ord.*")).collect(),
        lambda: numbers.write.format("cordwood").mode("append").options(**wrong(topic="copies")).save(),
    ):
        assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in refusal(spark, work)


@pytest.mark.parametrize(
    ("topic", "needed"), [("described", "READ on topic described"), ("other", "DESCRIBE on topic other")]
)
def test_a_source_without_the_right_to_read_is_refused_when_a_query_is_planned(
    spark: SparkSession, options: Callable[..., dict[str, str]], topic: str, needed: str
) -> None:
    given = options("SCRAM-SHA-512", "bela", subscribe=f"orders,{topic}")
    assert f"this needs {needed} at 127.0.0.1:" in refusal(spark, lambda: read(spark, given).collect())


@pytest.mark.parametrize(
    ("user", "topic", "needed"),
    [
        ("bela", "orders", "WRITE on topic orders"),
        ("bela", "other", "DESCRIBE on topic other"),
        ("dora", "copies", f"CREATE, WRITE and DELETE on topics whose names begin with {STAGING}"),
    ],
)
def test_a_sink_without_the_rights_to_write_is_refused_when_a_query_is_planned(
    spark: SparkSession, options: Callable[..., dict[str, str]], user: str, topic: str, needed: str
) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) value")
    given = options("SCRAM-SHA-512", user, topic=topic)
    work = rows.write.format("cordwood").mode("append").options(**given).save
    assert needed in refusal(spark, work)


# --- what is kept and shown -------------------------------------------------------------------------

PROGRAM = """
import json, pathlib, sys
import cordwood.spark

told, folder = json.load(sys.stdin), pathlib.Path(sys.argv[1])
spark = cordwood.spark.session("secrets", master="local[2,4]", config={
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": (folder / "events").as_uri(),
    "spark.eventLog.compress": "false",
    "spark.ui.enabled": "false",
})
spark.sparkContext.setLogLevel("INFO")
for way, given in told["ways"].items():
    rows = spark.read.format("cordwood").options(**given, subscribe="orders").load()
    rows.explain(True)
    print(way, rows.count(), "rows")
    written = rows.select("value").write.format("cordwood").mode("append")
    written.options(**given, topic="secret-copies").save()
    stream = spark.readStream.format("cordwood").options(
        **given, subscribe="orders", startingOffsets="earliest").load().select("value")
    query = stream.writeStream.format("cordwood").options(
        **given, topic="secret-copies", checkpointLocation=str(folder / "checkpoint" / way)
    ).trigger(availableNow=True).start()
    query.awaitTermination()
    print(query.lastProgress)
    shown = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
    print(way, "shown to ps:", sum(secret.encode() in each for each in shown for secret in told["secrets"]))
try:
    spark.read.format("cordwood").options(**told["wrong"], subscribe="orders").load().collect()
except Exception as error:
    print("refused:", error)
spark.stop()
"""


def test_no_password_is_in_the_event_log_in_logs_or_in_a_checkpoint(secured: Secured, tmp_path: Path) -> None:
    """With Spark's log at INFO and a failed query, in its own process; a key in an option is as secret."""
    key = secured.own.key.read_text()
    by_user = secured.java_settings("SCRAM-SHA-512", tmp_path, "erna", "hidden-erna")
    by_text = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": secured.authority.certificate.read_text(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": secured.own.certificate.read_text(),
        "ssl.keystore.key": key,
    }
    wrong = secured.java_settings("SCRAM-SHA-512", tmp_path, "erna", "hidden-wrong")

    def given(way: str, settings: dict[str, str]) -> dict[str, str]:
        options = {f"kafka.{name}": value for name, value in settings.items()}
        return {"kafka.bootstrap.servers": secured.address(way), **options}

    secrets = ["hidden-", *(line for line in key.splitlines() if "-----" not in line)]
    told = {
        "ways": {"user": given("SCRAM-SHA-512", by_user), "key": given("PEM", by_text)},
        "wrong": given("SCRAM-SHA-512", wrong),
        "secrets": secrets,
    }
    tmp_path.joinpath("events").mkdir()
    tmp_path.joinpath("program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py", tmp_path],
        input=json.dumps(told),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for way in ("user", "key"):
        assert f"{way} {len(VALUES)} rows" in done.stdout
        assert f"{way} shown to ps: 0\n" in done.stdout
    assert "refused: " in done.stdout
    assert "invalid credentials" in done.stdout
    assert [secret for secret in secrets if secret in done.stdout + done.stderr] == []
    kept = [path for name in ("events", "checkpoint") for path in (tmp_path / name).rglob("*")]
    texts = {path: path.read_text(errors="replace") for path in kept if path.is_file()}
    assert any("SparkListenerSQLExecutionStart" in text for text in texts.values())
    assert [path for path, text in texts.items() if any(secret in text for secret in secrets)] == []


# --- jobs -------------------------------------------------------------------------------------------

JOBS = {
    "pipeline export": "-t orders --to DIR/exported",
    "pipeline ingest": "-t ingested --from DIR/rows.csv",
    "pipeline materialize": "-t orders --latest --to DIR/latest",
    "pipeline stats": "-t orders",
}


def test_every_job_with_an_address_is_tried() -> None:
    assert {name for name in with_address() if name.startswith("pipeline ")} == JOBS.keys()


@pytest.mark.parametrize("job", JOBS)
def test_a_job_works_with_the_file_of_kafkas_tools_and_says_why_it_is_not_let_in(
    spark: SparkSession, job: str, secured: Secured, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("name\naxe\nsaw\n")
    arguments = (*job.split(), *JOBS[job].replace("DIR", str(tmp_path)).split())
    for way in ("SCRAM-SHA-512", "PEM"):
        config = secured.properties(way, tmp_path)
        where = ("--bootstrap", secured.address(way), "--command-config", config)
        done = run(*arguments, *where)
        assert done.exit_code == 0, done.output
    config = secured.properties("SCRAM-SHA-512", tmp_path, password="hidden-wrong")
    sentence = refused(*arguments, "--bootstrap", secured.addresses["USERS"], "--command-config", config)
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in sentence
    assert "hidden" not in sentence
