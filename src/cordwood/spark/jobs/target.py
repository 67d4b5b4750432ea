"""The target topic of a job: found, or created as the job needs it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from cordwood.embedded import Log, open_when_free
from cordwood.embedded import open as open_log
from cordwood.errors import (
    CordwoodError,
    DirectoryLocked,
    DirectoryRefused,
    TopicExists,
    TopicMismatch,
    UnknownTopic,
)
from cordwood.kafka_client import KafkaClient
from cordwood.kafka_client.settings import with_certificates
from cordwood.spark.client import KAFKA, settings_of_server
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.options import place_of
from cordwood.spark.sink import LOCKED_SECONDS, Carrier, Destination, open_carrier
from cordwood.storage.meta import local_path

#: The time limit in seconds for a broker to create a topic.
SECONDS_MAX = 60.0


def ensure_topic(
    place: LogPlace, topic: str, partitions: int | None, config: Mapping[str, str] | None = None
) -> Destination:
    """Return the topic; create it if it is missing, with the log's default number of partitions unless given.

    Raises:
        TopicMismatch: If it exists with another number of partitions.
        CordwoodError: If it cannot be created.
    """
    found = find_topic(place, topic)
    if found is None:
        create_topic(place, topic, partitions, config or {})
        found = find_topic(place, topic)
        assert found is not None
    if partitions is not None and found.partitions != partitions:
        raise TopicMismatch(topic, "partitions", found.partitions, partitions)
    return found


@contextlib.contextmanager
def removed_unless_used(place: LogPlace, topic: str) -> Iterator[None]:
    """Remove a topic that the block created if the block then fails, unless it has records."""
    missing = find_topic(place, topic) is None
    try:
        yield
    except BaseException:
        if missing:
            # The original failure is more important than a topic that stays.
            with contextlib.suppress(CordwoodError), contextlib.closing(carrier_to(place)) as carrier:
                if place.path is None or os.path.exists(place.path):
                    carrier.remove_unused(topic)
        raise


def find_topic(place: LogPlace, topic: str) -> Destination | None:
    """Return the data needed to write to a topic, None if there is no such topic."""
    with contextlib.closing(carrier_to(place)) as carrier:
        try:
            return carrier.destination(topic)
        except UnknownTopic:
            return None
        except DirectoryRefused:
            # A missing directory is created with its first topic; other parents are not created.
            if place.path is None or os.path.exists(place.path):
                raise
            return None


def create_topic(place: LogPlace, topic: str, partitions: int | None, config: Mapping[str, str]) -> None:
    """Create a topic, through the server that holds the directory, if there is one."""
    if place.path is None:
        client = with_certificates(place_of(place.options(), writing=True).client, prefix=KAFKA)
        _create_by_address(client, topic, partitions, config)
        return
    path = local_path(place.path)
    try:
        log: Log = open_when_free(lambda: open_log(path), LOCKED_SECONDS)
    except DirectoryLocked as error:
        if error.address is None:
            raise
        _create_by_address(settings_of_server(error.address), topic, partitions, config)
        return
    with log:
        log.create_topic(topic, partitions, config)


def carrier_to(place: LogPlace) -> Carrier:
    """Return the carrier of a sink to the log; the caller closes it."""
    return open_carrier(place_of(place.options(), writing=True))


def _create_by_address(
    client: Mapping[str, str], topic: str, partitions: int | None, config: Mapping[str, str]
) -> None:
    with contextlib.closing(KafkaClient(client, SECONDS_MAX)) as broker:
        if not broker.create(topic, partitions, config):
            raise TopicExists(topic)
