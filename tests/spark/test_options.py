"""Options: every name of the Kafka connector that has a meaning here, and no silence about any other."""

from __future__ import annotations

from typing import Any

import pytest

from cordwood.errors import ConfigError
from cordwood.spark.options import (
    EARLIEST,
    LATEST,
    Limit,
    Place,
    Subscription,
    check_names,
    check_read_options,
    check_write_options,
    is_read,
)

LEAST = {"path": "/data", "subscribe": "orders"}


def test_the_least_that_reads() -> None:
    options = check_read_options(LEAST)
    assert options.place == Place("/data", {}, None)
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
        ({"kafka.group.id": "g"}, "place", Place("/data", {}, "g")),
        ({"verify": "off"}, "verify", False),
        ({"verify": "chain"}, "verify", True),
        ({"verify": "chain"}, "chain", True),
        ({"verify": "crc"}, "chain", False),
        ({"path": "file:/data"}, "place", Place("/data", {}, None)),
        ({"path": "file:///data"}, "place", Place("/data", {}, None)),
    ],
)
def test_what_is_said_is_understood(given: dict[str, str], field: str, value: Any) -> None:
    assert getattr(check_read_options({**LEAST, **given}), field) == value


def test_by_address_any_setting_of_the_client_goes_through() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SSL", "assign": '{"a": [1, 0]}'}
    options = check_read_options(given)
    assert options.place == Place(None, {"bootstrap.servers": "h:1", "security.protocol": "SSL"}, None)
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
        (
            {"startingOffsets": "earliest", "startingTimestamp": "1"},
            "startingTimestamp",
            "contradict each other",
        ),
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
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit", "is not for the user to set"),
        ({"topic": "x"}, "topic", "is for writing"),
        ({"txnAppId": "x"}, "txnAppId", "is for writing"),
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
        (True, {"endingTimestamp": "5"}),
        (False, {"startingOffsets": "latest"}),
        (False, {"startingOffsets": '{"orders": {"0": -1}}'}),
        (False, {"maxOffsetsPerTrigger": "5"}),
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
        ({"path": "/data", "subscribe": "a"}, "subscribe is for reading"),
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
    with pytest.raises(ConfigError, match="unknown setting owner"):
        check_names({**LEAST, "owner": "o"})


def test_a_subscription_is_what_tells_reading_from_writing() -> None:
    assert is_read({"SUBSCRIBEPATTERN": "x"})
    assert not is_read({"path": "/data", "topic": "x"})
