"""Settings of Kafka's broker that Cordwood does not apply.

A ``server.properties`` written for Kafka (3.x and 4.x) loads with a warning for each of these. Large or open
families are listed by prefix, the other settings by name, so that a typo in a name is still detected.
"""

from __future__ import annotations

import re

_PREFIXES = """
    config.providers controller. delegation.token. group.consumer. group.coordinator. group.share.
    group.streams. kafka.metrics. log.cleaner. metadata. metric. metrics. password.encoder.
    quota. remote. replica. replication. rlmm.config. rsm.config. sasl. security. share. telemetry.
    transaction. zookeeper.
"""
_NAMES = """
    add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms advertised.host.name
    advertised.port alter.config.policy.class.name
    alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
    auto.include.jmx.reporter auto.leader.rebalance.enable background.threads
    broker.heartbeat.interval.ms broker.id.generation.enable broker.rack broker.session.timeout.ms
    client.quota.callback.class control.plane.listener.name controlled.shutdown.enable
    controlled.shutdown.max.retries
    controlled.shutdown.retry.backoff.ms cordoned.log.dirs create.topic.policy.class.name
    delete.records.purgatory.purge.interval.requests early.start.listeners
    eligible.leader.replicas.enable fetch.purgatory.purge.interval.requests
    follower.replication.throttled.rate follower.replication.throttled.replicas host.name
    initial.broker.registration.timeout.ms inter.broker.listener.name inter.broker.protocol.version
    leader.imbalance.check.interval.seconds leader.imbalance.per.broker.percentage
    leader.replication.throttled.rate leader.replication.throttled.replicas
    log.dir.failure.timeout.ms log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms
    log.message.downconversion.enable log.message.format.version log.message.timestamp.difference.max.ms
    max.connection.creation.rate max.connections.per.ip max.connections.per.ip.overrides
    max.request.partition.size.limit num.io.threads
    num.network.threads num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads
    num.replica.fetchers offsets.commit.required.acks offsets.commit.timeout.ms offsets.load.buffer.size
    offsets.retention.check.interval.ms offsets.topic.compression.codec offsets.topic.num.partitions
    offsets.topic.segment.bytes port principal.builder.class process.roles
    producer.id.expiration.check.interval.ms producer.purgatory.purge.interval.requests queued.max.requests
    request.timeout.ms reserved.broker.max.id server.max.startup.time.ms socket.listen.backlog.size
    socket.receive.buffer.bytes socket.send.buffer.bytes ssl.allow.dn.changes ssl.allow.san.changes
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.keymanager.algorithm
    ssl.keystore.password ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.password
    unclean.leader.election.interval.ms unstable.api.versions.enable unstable.feature.versions.enable
"""

PREFIXES = tuple(_PREFIXES.split())
NAMES = frozenset(_NAMES.split())

# The settings above that Kafka takes with the prefix of a listener begin with these words there; those of
# SASL begin with a mechanism.
_OF_LISTENERS = re.compile(r"(max\.connection|connections\.|[a-z0-9-]+\.sasl\.|principal\.builder\.)")


def may_belong_to_a_listener(name: str) -> bool:
    """Return whether Kafka takes the setting *name* for one listener."""
    return _OF_LISTENERS.match(name) is not None
