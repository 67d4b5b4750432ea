"""The library call behind ``cordwood mirror``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from cordwood.config import BrokerConfig
from cordwood.host import Clock, SystemClock
from cordwood.mirror.options import MirrorOptions
from cordwood.mirror.report import MirrorReport
from cordwood.mirror.run import MirrorRun
from cordwood.storage.directory import DataDirectory
from cordwood.wire_client import KafkaCluster


def mirror_topics(
    directory: DataDirectory,
    config: BrokerConfig,
    client: Mapping[str, Any],
    options: MirrorOptions | None = None,
    clock: Clock | None = None,
) -> MirrorReport:
    """Copy topics of a Kafka cluster into *directory*, and return what was copied. Durable on return.

    *client* are the settings of the Kafka client, with ``bootstrap.servers``. Batches keep their bytes except
    for the leader epoch; offsets, timestamps, producers and transactions are those of the source, and topics
    keep their ids. What is there from an earlier run is compared with the source and continued, however that
    run ended. A topic or partition that cannot be mirrored is in the report, and the others are.

    Raises:
        CordwoodError: If no broker answers, or none of the topics exists.
        ConfigError: If a setting is invalid.
        StorageError: If it cannot be stored. What was copied before stays.
    """
    options = options or MirrorOptions()
    with contextlib.closing(KafkaCluster(client, options.seconds)) as cluster:
        return MirrorRun(directory, config, cluster, options, clock or SystemClock()).run()
