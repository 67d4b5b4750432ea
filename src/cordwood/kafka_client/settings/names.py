"""The settings of Java's client by what becomes of them in librdkafka. Tables only.

A setting that both clients know is in no table: it is passed on.
"""

from __future__ import annotations

from typing import NamedTuple

#: The path of a certificate store; files are read when a client is created.
TRUSTSTORE = "ssl.truststore.location"
KEYSTORE = "ssl.keystore.location"
STORES = tuple(
    f"ssl.{store}.{part}" for store in ("truststore", "keystore") for part in ("location", "type", "password")
)
#: Java's class that asks for tokens of OAUTHBEARER; librdkafka does that without being told.
LOGIN_HANDLER = "sasl.login.callback.handler.class"
ISSUER_URL = "sasl.oauthbearer.token.endpoint.url"


class NamedSettings(NamedTuple):
    """Settings that are handled alike, and the sentence about them that follows their name."""

    names: frozenset[str]
    sentence: str


def named(sentence: str, names: str) -> NamedSettings:
    """Return the settings *names*, separated by spaces, with their *sentence*."""
    return NamedSettings(frozenset(names.split()), sentence)


RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
#: Settings whose value is changed too, or which become several settings.
TRANSLATED = (
    "buffer.memory",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "default.api.timeout.ms",
    "sasl.jaas.config",
    "ssl.endpoint.identification.algorithm",
    *STORES,
)
#: Settings whose value is not text for librdkafka: classes of Java, and objects of Python.
REFUSED = (
    named(
        "is refused: it names a Java class, and this client is not Java's; give user name and password in "
        "{prefix}sasl.jaas.config, or {prefix}sasl.oauthbearer.method=oidc with its settings",
        "sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class",
    ),
    named(
        "is refused: it names a Java class, and this client is not Java's; give certificates as PEM files in "
        "{prefix}ssl.ca.location, {prefix}ssl.certificate.location and {prefix}ssl.key.location",
        "security.providers ssl.engine.factory.class",
    ),
    named("is not a setting of text", "logger on_commit on_delivery default.topic.config"),
)
WITHOUT_EFFECT = (
    named("partitions are given to tasks by Spark", "partition.assignment.strategy exclude.internal.topics"),
    named("records come by the megabyte", "max.poll.records"),
    named(
        "the client has no such metrics",
        "metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms "
        "auto.include.jmx.reporter",
    ),
    named("this client waits in another way", "max.block.ms metadata.max.idle.ms"),
    named(
        "this client has one limit for connecting, socket.connection.setup.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
    ),
    named(
        "OpenSSL decides it",
        "ssl.protocol ssl.enabled.protocols ssl.provider ssl.keymanager.algorithm ssl.trustmanager.algorithm "
        "ssl.secure.random.implementation",
    ),
    named(
        "this client renews logins by itself",
        "sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor "
        "sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds "
        "sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor "
        "sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms",
    ),
    named(
        "brokers use it",
        "sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience "
        "sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode "
        "sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url "
        "sasl.oauthbearer.scope.claim.name",
    ),
    named(
        "a column partition or the key says where a row goes",
        "partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms "
        "partitioner.ignore.keys",
    ),
)
