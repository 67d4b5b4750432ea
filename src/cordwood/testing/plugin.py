"""The pytest plugin: fixtures with a Kafka broker, a topic, clients and Spark.

pytest imports this module in every run of every project that has Cordwood installed, so it imports nothing
else. A fixture imports what it needs.
"""

from __future__ import annotations

import gc
import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from cordwood.spark import SparkSession
    from cordwood.testing.broker import KafkaBroker

_broker_key = pytest.StashKey["KafkaBroker"]()
#: A name of a topic has at most 249 characters.
_NAME_CHARACTERS_MAX = 200
#: librdkafka's log level without the lines about connections, which a crash ends and refuses on purpose.
_CRITICAL = 2


class _PlainModules:
    """Finds the modules of this package before pytest does.

    pytest rewrites the assertions of every distribution that has a plugin. For the whole of this one that
    takes longer than everything else until a broker is ready, and its assertions are not those of a test.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of this package is, None for others."""
        return PathFinder.find_spec(name, path, target) if name.startswith("cordwood.") else None


_plain_modules = _PlainModules()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and import this package as it is."""
    if _plain_modules not in sys.meta_path:
        sys.meta_path.insert(0, _plain_modules)
        config.add_cleanup(lambda: sys.meta_path.remove(_plain_modules))
    config.addinivalue_line(
        "markers", "kafka(partitions=1, config={}): the partitions and settings of the topic in kafka_topic"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End all faults before the fixtures of the test end: they and the next test need a working broker."""
    broker = item.config.stash.get(_broker_key, None)
    if broker is not None:
        broker.heal()


@pytest.fixture(scope="session")
def kafka_broker_config() -> Mapping[str, str]:
    """Return the settings of `kafka_broker`, none. Define a fixture of this name to set some."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(
    kafka_broker_config: Mapping[str, str], pytestconfig: pytest.Config
) -> Iterator[KafkaBroker]:
    """Give a Kafka broker in memory, for all tests of this process; its address is ``bootstrap``.

    Faults that a test causes end with the test.
    """
    with _collecting_later():
        from cordwood.testing.broker import KafkaBroker

    with KafkaBroker(config=kafka_broker_config) as broker:
        pytestconfig.stash[_broker_key] = broker
        try:
            yield broker
        finally:
            del pytestconfig.stash[_broker_key]


@pytest.fixture
def kafka_topic(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the name of a new topic, deleted after the test.

    It has one partition, unless ``@pytest.mark.kafka(partitions=3, config={...})`` says otherwise.
    """
    marker = request.node.get_closest_marker("kafka")
    plain = re.sub(r"[^\w.-]+", "-", request.node.name, flags=re.ASCII)[:_NAME_CHARACTERS_MAX]
    name = plain = plain.strip(".-") or "topic"
    # A client that an earlier test forgot to close may have created its topic again.
    taken, numbers = kafka_broker.topics, count(2)
    while name in taken:
        name = f"{plain}-{next(numbers)}"
    kafka_broker.create_topic(name, **(marker.kwargs if marker else {}))
    yield name
    kafka_broker.delete_topic(name)


@pytest.fixture
def kafka_producer(kafka_broker: KafkaBroker) -> Iterator[Any]:
    """Give a `confluent_kafka.Producer`, flushed after the test. Needs ``cordwood[testing]``."""
    confluent_kafka = _imported("confluent_kafka", "kafka_producer", "testing")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka_broker.bootstrap, "linger.ms": 0, "log_level": _CRITICAL}
    )
    yield producer
    producer.flush(10)


@pytest.fixture
def kafka_consumer(kafka_broker: KafkaBroker, kafka_topic: str) -> Iterator[Any]:
    """Give a `confluent_kafka.Consumer` that is subscribed to `kafka_topic`, from its first record.

    Its group has the name of the topic. Needs ``cordwood[testing]``.
    """
    confluent_kafka = _imported("confluent_kafka", "kafka_consumer", "testing")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka_broker.bootstrap,
            "group.id": kafka_topic,
            "auto.offset.reset": "earliest",
            "log_level": _CRITICAL,
        }
    )
    consumer.subscribe([kafka_topic])
    yield consumer
    consumer.close()


@pytest.fixture(scope="session")
def cordwood_spark() -> Iterator[SparkSession]:
    """Give a Spark session with ``format("cordwood")``, for all tests of this process.

    Needs ``cordwood[spark]``.
    """
    _imported("pyspark", "cordwood_spark", "spark")
    from cordwood import spark

    existing = spark.has_session()
    session = spark.session(master="local[2]", config={"spark.ui.enabled": "false"})
    yield session
    if not existing:
        session.stop()


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Import without the garbage collector, which would look through hundreds of new modules in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _imported(package: str, fixture: str, extra: str) -> Any:
    """Return *package*; fail the test with one sentence if it is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
    pytest.fail(f"{fixture} needs {package}: pip install 'cordwood[{extra}]'", pytrace=False)
