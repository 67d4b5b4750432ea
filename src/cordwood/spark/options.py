"""The options of ``.option(...)``, with the names of Spark's Kafka connector. Pure."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cordwood.errors import ConfigError, InvalidSetting, UnknownSetting
from cordwood.kafka_client.settings import ClientSettings
from cordwood.spark.client import KAFKA, client_settings
from cordwood.storage.meta import local_path

EARLIEST, LATEST = -2, -1
BOOTSTRAP = "kafka.bootstrap.servers"
GROUP = "kafka.group.id"
#: Whether records of transactions that are open or were aborted are read; by path as well as by address.
ISOLATION = "kafka.isolation.level"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
#: The first given one of these counts, as in Spark's Kafka connector.
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_TRIGGERED = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
READ_ONLY = (
    *_SUBSCRIPTIONS,
    *_STARTS,
    *_ENDS,
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    *_TRIGGERED,
    "minPartitions",
    "maxRecordsPerPartition",
    "verify",
    "pushFilters",
)
WRITE_ONLY = ("topic", "txnAppId", "txnVersion")
#: Options that Spark adds for the sink of a stream; `queryName` in declarative pipelines.
_SPARKS = ("checkpointLocation", "queryName")
BOTH = ("path", "includeHeaders")
#: Options of Spark's Kafka connector that have no effect here, and why.
WITHOUT_EFFECT = {
    "groupIdPrefix": "a source joins no consumer group; kafka.group.id shows progress as one",
    "kafkaConsumer.pollTimeoutMs": "kafka.default.api.timeout.ms says how long a broker may take",
    "fetchOffset.numRetries": "the client tries again by itself",
    "fetchOffset.retryIntervalMs": "the client tries again by itself",
    "partition.metadata.cache.ttl.ms": "every trigger asks which topics and partitions there are",
}
_SPELLINGS = {name.lower(): name for name in (*BOTH, *READ_ONLY, *WRITE_ONLY, *_SPARKS, *WITHOUT_EFFECT)}
#: Options that Spark's catalogue adds for a table.
_TABLE = ("provider", "location", "owner", "comment", "external", "is_managed_location")
_DELAY = re.compile(r"\s*(\d+)\s*(ms|s|m|min|h|d)?\s*")
_DELAY_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

Use = Literal["batch", "stream", "write"]
_LOG = logging.getLogger(__name__)
ByPartition = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class LogLocation:
    """The place of the records: a data directory, or the address of a broker with client settings.

    ``answer_seconds`` is the time limit for an answer of that broker, None for the default; with
    ``committed`` only committed records are read.
    """

    path: str | None
    client: Mapping[str, str] = field(repr=False)
    group_id: str | None
    answer_seconds: float | None = None
    committed: bool = True


@dataclass(frozen=True)
class Subscription:
    """The partitions to read."""

    kind: Literal["subscribe", "subscribePattern", "assign"]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Limit:
    """The start or end of reading: an offset or a time, for all partitions or for each one.

    Offsets may be `EARLIEST` and `LATEST`; times are milliseconds. ``option`` is the user's option.
    """

    option: str
    timed: bool
    everywhere: int | None = None
    each: ByPartition | None = None


@dataclass(frozen=True)
class ReadOptions:
    """The options of a reader."""

    place: LogLocation
    subscription: Subscription
    start: Limit | None
    end: Limit | None
    latest_without_match: bool
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    verify: bool
    chain: bool
    push_filters: bool


@dataclass(frozen=True)
class WriteOptions:
    """The options of the sink."""

    place: LogLocation
    topic: str | None
    transaction: tuple[str, int] | None
    include_headers: bool


def is_read(options: Mapping[str, str]) -> bool:
    """Return whether *options* are those of a source, without options of a sink."""
    given = {name.lower() for name in options}
    if any(name.lower() in given for name in WRITE_ONLY):
        return False
    return any(name.lower() in given for name in _SUBSCRIPTIONS)


def check_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return *options* with canonical names; combinations are not checked.

    Raises:
        UnknownSetting: If there is no option of such a name.
    """
    found = {}
    of_a_table = any(name.lower() == "provider" for name in options)
    for name, value in options.items():
        lower = name.lower()
        if of_a_table and (lower in _TABLE or lower.startswith("option.")):
            continue
        if lower.startswith(KAFKA) and len(lower) > len(KAFKA):
            found[lower] = value
        elif lower in _SPELLINGS:
            found[_SPELLINGS[lower]] = value
        else:
            near = difflib.get_close_matches(lower, [*_SPELLINGS, BOOTSTRAP, GROUP, ISOLATION], 1)
            meant = _SPELLINGS.get(near[0], near[0]) if near else None
            raise UnknownSetting(name, meant, "option")
    return found


def check_read_options(options: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """Return the checked options of a reader; *streaming* says which kind, None if unknown.

    Raises:
        ConfigError: If one is unknown, invalid, missing, or contradicts another; says which.
    """
    given = check_names(options)
    start, end = _limit(given, _STARTS), _limit(given, _ENDS)
    for name in _ENDS[1:] if streaming else ():
        if name in given:
            raise ConfigError(name, f"{name} is for batch queries: a stream has no end")
    _check_limits(start, end, streaming)
    smallest, most = _count(given, "minOffsetsPerTrigger"), _count(given, "maxOffsetsPerTrigger")
    if smallest is not None and most is not None and smallest > most:
        raise ConfigError(
            "minOffsetsPerTrigger",
            f"minOffsetsPerTrigger={smallest} is more than maxOffsetsPerTrigger={most}",
        )
    place, checked = place_of(given, writing=False), _choice(given, "verify", "crc", "chain", "off")
    if checked == "chain" and place.path is None:
        raise ConfigError("verify", "verify=chain is for reading by path: a broker does not hand out leaves")
    return ReadOptions(
        place=place,
        subscription=_subscription(given),
        start=start,
        end=end,
        latest_without_match=_choice(given, "startingOffsetsByTimestampStrategy", "error", "latest")
        == "latest",
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=smallest,
        max_trigger_delay_ms=_delay(given, "maxTriggerDelay", 15 * 60_000),
        min_partitions=_count(given, "minPartitions"),
        max_records_per_partition=_count(given, "maxRecordsPerPartition"),
        include_headers=_flag(given, "includeHeaders", False),
        verify=checked != "off",
        chain=checked == "chain",
        push_filters=_flag(given, "pushFilters", False),
    )


def check_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return the checked options of the sink.

    Raises:
        ConfigError: If one is unknown, invalid, missing, or contradicts another; says which.
    """
    given = check_names(options)
    if ("txnAppId" in given) != ("txnVersion" in given):
        missing = "txnVersion" if "txnAppId" in given else "txnAppId"
        raise ConfigError(missing, f"txnAppId and txnVersion come together, but {missing} is missing")
    version, topic = _number(given, "txnVersion", 0), _text(given, "topic")
    return WriteOptions(
        place=place_of(given, writing=True),
        topic=topic if topic is None else topic.strip(),
        transaction=None if version is None else (given["txnAppId"], version),
        include_headers=_flag(given, "includeHeaders", False),
    )


def without_effect(options: Mapping[str, str], use: Use) -> dict[str, str]:
    """Return the checked *options* that have no effect on such a query, and why."""
    given = check_names(options)
    found = {name: WITHOUT_EFFECT[name] for name in given if name in WITHOUT_EFFECT}
    if use == "write":
        found |= dict.fromkeys((name for name in READ_ONLY if name in given), "it is for reading")
    else:
        found |= dict.fromkeys((name for name in WRITE_ONLY if name in given), "it is for writing")
        for names in (_STARTS, _ENDS):
            said = [name for name in names if name in given]
            found |= dict.fromkeys(said[1:], f"{said[0]} counts" if said else "")
    if use == "batch":
        found |= dict.fromkeys((name for name in _TRIGGERED if name in given), "it is for streaming queries")
    if use == "stream" and "endingTimestamp" in given:
        found["endingTimestamp"] = "a stream has no end"
    return found | _client(given, writing=use == "write").unused


def warn_without_effect(options: Mapping[str, str], use: Use, columns: Sequence[str] = ()) -> None:
    """Log one warning about *options* without effect and *columns* that are not written."""
    said = [f"{name} ({why})" for name, why in without_effect(options, use).items()]
    if columns:
        said.append(f"column {', '.join(columns)} (a record has no such part)")
    if said:
        _LOG.warning("without effect in format cordwood: %s", "; ".join(said))


def place_of(options: Mapping[str, str], *, writing: bool) -> LogLocation:
    """Return the place of the records from *options*.

    Raises:
        ConfigError: If it is missing, or the client does not support an option or its value.
        DirectoryRefused: If the path is not on a mounted file system.
    """
    given = check_names(options)
    path, address = _text(given, "path"), _text(given, BOOTSTRAP)
    if (path is None) == (address is None):
        wrong = "are both given: one of them" if path else "are both missing: one of them"
        raise ConfigError("path", f"path and {BOOTSTRAP} {wrong} says where the records are")
    client = _client(given, writing=writing)
    settings = dict(client.settings)
    group = settings.pop("group.id", None)
    committed = _choice(given, ISOLATION, COMMITTED, UNCOMMITTED) == COMMITTED
    settings.pop("isolation.level", None)
    others = [name for name in given if name.startswith(KAFKA) and name not in (GROUP, ISOLATION)]
    if path is not None and others:
        name = min(others)
        raise ConfigError(name, f"{name} is for reading by address, but path says to read {path}")
    local = None if path is None else local_path(path)
    return LogLocation(local, settings, group, client.answer_seconds, committed)


def _client(given: Mapping[str, str], *, writing: bool) -> ClientSettings:
    named = {name.removeprefix(KAFKA): value for name, value in given.items() if name.startswith(KAFKA)}
    return client_settings(named, writing=writing)


def _subscription(given: Mapping[str, str]) -> Subscription:
    kinds = [name for name in _SUBSCRIPTIONS if name in given]
    if len(kinds) != 1:
        wrong = f"{' and '.join(kinds)} contradict each other" if kinds else "none is given"
        raise ConfigError(
            kinds[0] if kinds else "subscribe",
            f"one of {', '.join(_SUBSCRIPTIONS)} says what to read: {wrong}",
        )
    if "subscribePattern" in given:
        pattern = given["subscribePattern"]
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidSetting("subscribePattern", pattern, f"a regular expression ({error})") from None
        return Subscription("subscribePattern", pattern=pattern)
    if "assign" in given:
        return Subscription("assign", partitions=_assigned(given["assign"]))
    topics = tuple(dict.fromkeys(name.strip() for name in given["subscribe"].split(",") if name.strip()))
    if not topics:
        raise InvalidSetting("subscribe", given["subscribe"], "names of topics with commas between")
    return Subscription("subscribe", topics=topics)


def _assigned(text: str) -> tuple[tuple[str, int], ...]:
    found = _json(text)
    if isinstance(found, dict) and found and all(isinstance(numbers, list) for numbers in found.values()):
        pairs = [(topic, number) for topic, numbers in found.items() for number in numbers]
        if all(type(number) is int and number >= 0 for _, number in pairs) and pairs:
            return tuple(sorted(set(pairs)))
    raise InvalidSetting("assign", text, 'JSON like {"orders": [0, 1]}')


def _limit(given: Mapping[str, str], names: tuple[str, ...]) -> Limit | None:
    """Return the start or end from the first given option of *names*."""
    said = [name for name in names if name in given]
    if not said:
        return None
    name, text = said[0], given[said[0]]
    if name.endswith("Timestamp") and "ByTimestamp" not in name:
        return Limit(name, timed=True, everywhere=_number(given, name, 0))
    if name.endswith("ByTimestamp"):
        return Limit(name, timed=True, each=_by_partition(name, text, 0))
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.strip().lower() in words:
        return Limit(name, timed=False, everywhere=words[text.strip().lower()])
    return Limit(name, timed=False, each=_by_partition(name, text, EARLIEST))


def _check_limits(start: Limit | None, end: Limit | None, streaming: bool | None) -> None:
    if end is not None and EARLIEST in _offsets(end):
        raise ConfigError(end.option, f"{end.option} cannot be earliest")
    if streaming is False and start is not None and LATEST in _offsets(start):
        raise ConfigError(start.option, f"{start.option} cannot be latest in a batch query")
    if start is None or end is None or start.each is None or end.each is None or start.timed or end.timed:
        return
    for (topic, number), first in start.each.items():
        last = end.each.get((topic, number), LATEST)
        if 0 <= last < first:
            where = f"partition {number} of {topic}"
            raise ConfigError(
                start.option, f"startingOffsets={first} is beyond endingOffsets={last} of {where}"
            )


def _offsets(limit: Limit) -> set[int | None]:
    return set() if limit.timed else {limit.everywhere, *(limit.each or {}).values()}


def _by_partition(name: str, text: str, smallest: int) -> ByPartition:
    found = _json(text)
    if isinstance(found, dict) and found and all(isinstance(each, dict) for each in found.values()):
        pairs = [(topic, key, value) for topic, each in found.items() for key, value in each.items()]
        if pairs and all(
            key.isdecimal() and type(value) is int and value >= smallest for _, key, value in pairs
        ):
            return {(topic, int(key)): value for topic, key, value in pairs}
    words = "earliest, latest or " if name.endswith("Offsets") else ""
    raise InvalidSetting(name, text, words + 'JSON like {"orders": {"0": 23}}')


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _text(given: Mapping[str, str], name: str) -> str | None:
    if name in given and not given[name].strip():
        raise InvalidSetting(name, given[name], "something")
    return given.get(name)


def _number(given: Mapping[str, str], name: str, smallest: int) -> int | None:
    if name not in given:
        return None
    text = given[name].strip()
    if not re.fullmatch(r"-?\d{1,19}", text) or int(text) < smallest:
        raise InvalidSetting(name, given[name], f"a whole number from {smallest} on")
    return int(text)


def _count(given: Mapping[str, str], name: str) -> int | None:
    return _number(given, name, 1)


def _flag(given: Mapping[str, str], name: str, otherwise: bool) -> bool:
    return _choice(given, name, str(otherwise).lower(), str(not otherwise).lower()) == "true"


def _choice(given: Mapping[str, str], name: str, otherwise: str, *others: str) -> str:
    value = given.get(name, otherwise).strip().lower()
    if value not in (otherwise, *others):
        names = ", ".join((otherwise, *others[:-1]))
        raise InvalidSetting(name, given[name], f"{names} or {others[-1]}")
    return value


def _delay(given: Mapping[str, str], name: str, otherwise_ms: int) -> int:
    if name not in given:
        return otherwise_ms
    match = _DELAY.fullmatch(given[name].lower())
    if match is None:
        raise InvalidSetting(name, given[name], "a time like 30s, 15m or 2h")
    return int(match[1]) * _DELAY_UNITS_MS[match[2] or "ms"]
