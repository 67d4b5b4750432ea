"""Options: every name of the Kafka connector that has a meaning here, and no silence about any other."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.errors import ConfigError, DirectoryRefused
from cordwood.kafka_client.settings import names as every
from cordwood.spark.client import settings as client
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.options import (
    BOOTSTRAP,
    BOTH,
    EARLIEST,
    GROUP,
    ISOLATION,
    LATEST,
    READ_ONLY,
    WITHOUT_EFFECT,
    WRITE_ONLY,
    Limit,
    LogLocation,
    Subscription,
    Use,
    check_names,
    check_read_options,
    check_write_options,
    is_read,
    warn_without_effect,
    without_effect,
)
from cordwood.spark.source.schema import spark_schema
from cordwood.spark.source.source import CordwoodSource

LEAST = {"path": "/data", "subscribe": "orders"}


def test_the_least_that_reads() -> None:
    options = check_read_options(LEAST)
    assert options.place == LogLocation("/data", {}, None)
    assert options.subscription == Subscription("subscribe", topics=("orders",))
    assert (options.start, options.end) == (None, None)
    assert options.fail_on_data_loss
    assert options.verify
    assert not options.include_headers
    assert not options.push_filters
    assert options.max_trigger_delay_ms == 900_000


def test_names_are_known_in_any_case() -> None:
    """Spark gives them in lower case."""
    given = {
        name.lower(): value
        for name, value in {**LEAST, "failOnDataLoss": "FALSE", "minPartitions": "3"}.items()
    }
    options = check_read_options(given)
    assert (options.fail_on_data_loss, options.min_partitions) == (False, 3)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"startingOffsets": "Latest"}, "start", Limit("startingOffsets", timed=False, everywhere=LATEST)),
        (
            {"endingOffsets": '{"orders": {"0": 7, "1": -1}}'},
            "end",
            Limit("endingOffsets", timed=False, each={("orders", 0): 7, ("orders", 1): LATEST}),
        ),
        ({"startingTimestamp": "1000"}, "start", Limit("startingTimestamp", timed=True, everywhere=1000)),
        (
            {"endingOffsetsByTimestamp": '{"orders": {"0": 5}}'},
            "end",
            Limit("endingOffsetsByTimestamp", timed=True, each={("orders", 0): 5}),
        ),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "latest_without_match", True),
        ({"maxTriggerDelay": "2h"}, "max_trigger_delay_ms", 7_200_000),
        ({"maxTriggerDelay": "1500"}, "max_trigger_delay_ms", 1500),
        ({"kafka.group.id": "g"}, "place", LogLocation("/data", {}, "g")),
        ({ISOLATION: "read_uncommitted"}, "place", LogLocation("/data", {}, None, committed=False)),
        ({"verify": "off"}, "verify", False),
        ({"verify": "chain"}, "verify", True),
        ({"verify": "chain"}, "chain", True),
        ({"verify": "crc"}, "chain", False),
        ({"path": "file:/data"}, "place", LogLocation("/data", {}, None)),
        ({"path": "file:///data"}, "place", LogLocation("/data", {}, None)),
    ],
)
def test_what_is_said_is_understood(given: dict[str, str], field: str, value: Any) -> None:
    assert getattr(check_read_options({**LEAST, **given}), field) == value


def test_how_long_a_broker_may_take_is_told_apart_from_settings_of_its_client() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "kafka.default.api.timeout.ms": "2500", "subscribe": "a"}
    assert check_read_options(given).place == LogLocation(None, {"bootstrap.servers": "h:1"}, None, 2.5)


def test_by_address_any_setting_of_the_client_goes_through() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SSL", "assign": '{"a": [1, 0]}'}
    options = check_read_options(given)
    assert options.place == LogLocation(None, {"bootstrap.servers": "h:1", "security.protocol": "SSL"}, None)
    assert options.subscription == Subscription("assign", partitions=(("a", 0), ("a", 1)))


@pytest.mark.parametrize(
    ("given", "name", "sentence"),
    [
        ({"subscibe": "x"}, "subscibe", "did you mean subscribe?"),
        ({"group.id": "x"}, "group.id", "did you mean kafka.group.id?"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss", "expected true or false"),
        ({"subscribe": " , "}, "subscribe", "names of topics"),
        ({"assign": '{"orders": [0]}'}, "subscribe", "subscribe and assign contradict each other"),
        ({"startingOffsets": "soon"}, "startingOffsets", "earliest, latest or JSON"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "startingOffsets", "earliest, latest or JSON"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "startingOffsets", "earliest, latest or JSON"),
        ({"endingOffsets": "earliest"}, "endingOffsets", "cannot be earliest"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "endingOffsets", "cannot be earliest"),
        (
            {"startingOffsets": '{"orders": {"0": 9}}', "endingOffsets": '{"orders": {"0": 8}}'},
            "startingOffsets",
            "startingOffsets=9 is beyond endingOffsets=8 of partition 0 of orders",
        ),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger", "is more than"),
        ({"minPartitions": "0"}, "minPartitions", "a whole number from 1 on"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay", "a time like 30s"),
        ({"kafka.bootstrap.servers": "h:1"}, "path", "are both given"),
        ({"kafka.ssl.ca": "x"}, "kafka.ssl.ca", "is for reading by address"),
        (
            {"kafka.enable.auto.commit": "true"},
            "kafka.enable.auto.commit",
            "Spark's checkpoint keeps",
        ),
        ({"path": " "}, "path", "expected something"),
        ({"verify": "sometimes"}, "verify", "expected crc, chain or off"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, str], name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_read_options({**LEAST, **given})
    assert caught.value.name == name
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "/data"}, "one of subscribe, subscribePattern, assign says what to read: none is given"),
        ({"subscribe": "orders"}, "are both missing"),
        ({"path": "/data", "subscribePattern": "("}, "a regular expression"),
        ({"path": "/data", "assign": '{"orders": 0}'}, 'JSON like {"orders": [0, 1]}'),
        (
            {"kafka.bootstrap.servers": "h:1", "subscribe": "orders", "verify": "chain"},
            "verify=chain is for reading by path",
        ),
    ],
)
def test_what_is_missing_is_said(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=r".*") as caught:
        check_read_options(given)
    assert sentence in str(caught.value)


def test_options_of_the_other_kind_of_query() -> None:
    for streaming, given in (
        (True, {"endingOffsets": "latest"}),
        (True, {"endingOffsetsByTimestamp": '{"orders": {"0": 5}}'}),
        (True, {"endingOffsets": "latest", "endingTimestamp": "5"}),
        (False, {"startingOffsets": "latest"}),
        (False, {"startingOffsets": '{"orders": {"0": -1}}'}),
    ):
        check_read_options({**LEAST, **given})
        with pytest.raises(ConfigError, match=next(iter(given))):
            check_read_options({**LEAST, **given}, streaming=streaming)
    start = check_read_options({**LEAST, "startingOffsets": "earliest"}, streaming=False).start
    assert start is not None
    assert start.everywhere == EARLIEST


def test_options_of_a_sink() -> None:
    options = check_write_options({"path": "/data", "topic": "t", "txnAppId": "a", "txnVersion": "3"})
    assert (options.topic, options.transaction) == ("t", ("a", 3))
    assert check_write_options({"path": "/data", "checkpointLocation": "/c"}).transaction is None
    for given, sentence in (
        ({"path": "/data", "txnAppId": "a"}, "txnVersion is missing"),
        ({"path": "/data", "txnVersion": "1"}, "txnAppId is missing"),
        ({"topic": "t"}, "are both missing"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            check_write_options(given)


def test_what_the_catalogue_adds_to_a_table_is_no_option() -> None:
    of_a_table = {
        **LEAST,
        "provider": "cordwood",
        "location": "file:/data",
        "owner": "o",
        "option.subscribe": "x",
    }
    assert check_names(of_a_table) == LEAST
    with pytest.raises(ConfigError, match="unknown option owner"):
        check_names({**LEAST, "owner": "o"})


def test_a_subscription_is_what_tells_reading_from_writing() -> None:
    assert is_read({"SUBSCRIBEPATTERN": "x"})
    assert not is_read({"path": "/data", "topic": "x"})
    assert not is_read({"subscribe": "x", "txnappid": "y"})


def test_a_time_for_all_counts_before_times_and_these_before_offsets() -> None:
    """The precedence of Spark's Kafka connector; what does not count is not even looked at."""
    for start in ("starting", "ending"):
        given = {
            f"{start}Offsets": "whenever",
            f"{start}OffsetsByTimestamp": '{"orders": {"0": 5}}',
            f"{start}Timestamp": "7",
        }
        for counts, name in ((7, "Timestamp"), (None, "OffsetsByTimestamp")):
            options = check_read_options({**LEAST, **given})
            limit = options.start if start == "starting" else options.end
            assert limit is not None
            assert (limit.option, limit.everywhere) == (start + name, counts)
            others = [other for other in given if other != start + name]
            unused = without_effect({**LEAST, **given}, "batch")
            assert unused == dict.fromkeys(others, f"{start}{name} counts")
            del given[start + name]


TRIGGERED = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "2", "maxTriggerDelay": "1s"}
WRITTEN = {"topic": "x", "txnAppId": "a", "txnVersion": "1"}


@pytest.mark.parametrize(
    ("use", "given", "names"),
    [
        ("batch", TRIGGERED, TRIGGERED),
        ("stream", {**TRIGGERED, "endingTimestamp": "5"}, ["endingTimestamp"]),
        ("batch", {"endingTimestamp": "5", **WRITTEN}, WRITTEN),
        ("write", {**WRITTEN, "startingOffsets": "latest", "verify": "off"}, ["startingOffsets", "verify"]),
        ("write", {"topic": "x", "includeHeaders": "true", "checkpointLocation": "/c"}, []),
        ("stream", dict.fromkeys(WITHOUT_EFFECT, "x"), WITHOUT_EFFECT),
        ("batch", {name.upper(): "x" for name in WITHOUT_EFFECT}, WITHOUT_EFFECT),
    ],
)
def test_what_the_connector_takes_and_has_no_effect_here_is_said(
    use: Use, given: dict[str, str], names: Collection[str], caplog: pytest.LogCaptureFixture
) -> None:
    """One warning names all of it."""
    options = {"path": "/data", **({} if use == "write" else {"subscribe": "orders"}), **given}
    if use == "write":
        check_write_options(options)
    else:
        check_read_options(options, streaming=use == "stream")
    unused = without_effect(options, use)
    assert sorted(unused) == sorted(names)
    warn_without_effect(options, use, columns=["price"])
    (said,) = caplog.messages
    assert all(f"{name} (" in said for name in [*names, "column price"])
    caplog.clear()
    warn_without_effect(LEAST, "batch")
    assert not caplog.messages


@pytest.mark.parametrize("path", ["s3a://bucket/data", "hdfs://host:9000/data", "gs:/bucket", "abfss://x/y"])
def test_a_path_that_is_on_no_file_system_is_refused_in_a_sentence(path: str) -> None:
    scheme = path.partition(":")[0]
    with pytest.raises(DirectoryRefused, match=f"^{path} is an address of {scheme}, but a data dir"):
        check_read_options({"path": path, "subscribe": "orders"})
    with pytest.raises(DirectoryRefused, match=f"is an address of {scheme}"):
        CordwoodSource({"path": path, "topic": "orders"})
    with pytest.raises(DirectoryRefused, match=f"is an address of {scheme}"):
        LogPlace(path=path).options()
    with pytest.raises(DirectoryRefused, match=f"is an address of {scheme}"):
        cordwood.open(path)


def test_each_query_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where Spark makes a reader or a writer again and again, for tasks and for batches, too."""
    with cordwood.open(tmp_path) as log:
        log.topic("orders")
    given = {
        "path": str(tmp_path),
        "subscribe": "orders",
        "groupIdPrefix": "x",
        "startingOffsets": "earliest",
    }
    source = CordwoodSource(given)
    schema = spark_schema(include_headers=False)
    assert not caplog.messages
    source.reader(schema).partitions()
    assert len(caplog.messages) == 1
    stream = source.streamReader(schema)
    start = stream.initialOffset()
    stream.partitions(start, start)
    source.streamReader(schema)
    assert len(caplog.messages) == 2
    stream.stop()
    sink = CordwoodSource({"path": str(tmp_path), "topic": "orders", "failOnDataLoss": "true"})
    sink.writer(spark_schema(include_headers=True), overwrite=False)
    assert len(caplog.messages) == 3
    for batch in range(3):
        sink.streamWriter(schema, overwrite=False).commit([], batch)
    assert len(caplog.messages) == 4
    assert all(each.startswith("without effect in format cordwood: ") for each in caplog.messages)


def rows_of_the_page(title: str) -> list[str]:
    """Return the first cells of the table under a heading of docs/spark.md."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    section = page.split(f"\n### {title}\n", 1)[1].split("\n#", 1)[0]
    return [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]


def names_of_the_page(title: str) -> list[str]:
    return [name for cell in rows_of_the_page(title) for name in re.findall(r"`([^`]+)`", cell)]


def test_the_page_has_every_option_once() -> None:
    found = names_of_the_page("Every option")
    assert sorted(found) == sorted(
        {BOOTSTRAP, GROUP, ISOLATION, *BOTH, *READ_ONLY, *WRITE_ONLY, *WITHOUT_EFFECT, "checkpointLocation"}
    )


def test_the_page_has_every_setting_of_the_client_that_does_not_go_through() -> None:
    tables = (
        *client.REFUSED_READING,
        *client.REFUSED_WRITING,
        *client.REFUSED,
        *every.REFUSED,
        *every.WITHOUT_EFFECT,
        *client.WITHOUT_EFFECT_READING,
        *client.WITHOUT_EFFECT_WRITING,
    )
    known = {name for each in tables for name in each.names} | {*every.RENAMED, *every.TRANSLATED}
    assert set(names_of_the_page("Settings of the Kafka client")) == known - {"group.id", "isolation.level"}
