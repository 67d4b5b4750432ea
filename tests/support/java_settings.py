"""The settings of Java's clients, and a certificate in the forms that its users have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
#: The settings of Java's consumer and producer, each with a value that is not its default where that is easy.
JAVAS = {
    "allow.auto.create.topics": "false",
    "auto.commit.interval.ms": "100",
    "auto.include.jmx.reporter": "true",
    "auto.offset.reset": "earliest",
    "check.crcs": "true",
    "enable.auto.commit": "false",
    "exclude.internal.topics": "true",
    "fetch.max.bytes": "52428800",
    "fetch.max.wait.ms": "100",
    "fetch.min.bytes": "1",
    "group.id": "g",
    "group.instance.id": "i",
    "group.protocol": "classic",
    "group.remote.assignor": "uniform",
    "heartbeat.interval.ms": "3000",
    "interceptor.classes": "a.B",
    "isolation.level": "read_committed",
    "key.deserializer": "a.B",
    "max.partition.fetch.bytes": "1048576",
    "max.poll.interval.ms": "300000",
    "max.poll.records": "500",
    "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
    "session.timeout.ms": "45000",
    "value.deserializer": "a.B",
    "acks": "1",
    "batch.size": "16384",
    "buffer.memory": "33554432",
    "compression.gzip.level": "5",
    "compression.lz4.level": "5",
    "compression.type": "zstd",
    "compression.zstd.level": "5",
    "delivery.timeout.ms": "120000",
    "enable.idempotence": "true",
    "key.serializer": "a.B",
    "linger.ms": "5",
    "max.block.ms": "60000",
    "max.in.flight.requests.per.connection": "5",
    "max.request.size": "1048576",
    "metadata.max.idle.ms": "300000",
    "partitioner.adaptive.partitioning.enable": "true",
    "partitioner.availability.timeout.ms": "0",
    "partitioner.class": "a.B",
    "partitioner.ignore.keys": "false",
    "retries": "3",
    "transaction.timeout.ms": "60000",
    "transactional.id": "t",
    "value.serializer": "a.B",
    "client.dns.lookup": "use_all_dns_ips",
    "client.id": "c",
    "client.rack": "r",
    "connections.max.idle.ms": "540000",
    "default.api.timeout.ms": "5000",
    "enable.metrics.push": "true",
    "metadata.max.age.ms": "300000",
    "metadata.recovery.rebootstrap.trigger.ms": "300000",
    "metadata.recovery.strategy": "rebootstrap",
    "metric.reporters": "a.B",
    "metrics.num.samples": "2",
    "metrics.recording.level": "INFO",
    "metrics.sample.window.ms": "30000",
    "receive.buffer.bytes": "-1",
    "reconnect.backoff.max.ms": "1000",
    "reconnect.backoff.ms": "50",
    "request.timeout.ms": "30000",
    "retry.backoff.max.ms": "1000",
    "retry.backoff.ms": "100",
    "security.protocol": "SASL_SSL",
    "security.providers": "a.B",
    "send.buffer.bytes": "131072",
    "socket.connection.setup.timeout.max.ms": "30000",
    "socket.connection.setup.timeout.ms": "10000",
    "sasl.client.callback.handler.class": "a.B",
    "sasl.jaas.config": f'{PLAIN} required username="u" password="p";',
    "sasl.kerberos.kinit.cmd": "/usr/bin/kinit",
    "sasl.kerberos.min.time.before.relogin": "60000",
    "sasl.kerberos.service.name": "kafka",
    "sasl.kerberos.ticket.renew.jitter": "0.05",
    "sasl.kerberos.ticket.renew.window.factor": "0.8",
    "sasl.login.callback.handler.class": "a.B",
    "sasl.login.class": "a.B",
    "sasl.login.connect.timeout.ms": "1",
    "sasl.login.read.timeout.ms": "1",
    "sasl.login.refresh.buffer.seconds": "300",
    "sasl.login.refresh.min.period.seconds": "60",
    "sasl.login.refresh.window.factor": "0.8",
    "sasl.login.refresh.window.jitter": "0.05",
    "sasl.login.retry.backoff.max.ms": "10000",
    "sasl.login.retry.backoff.ms": "100",
    "sasl.mechanism": "PLAIN",
    "sasl.oauthbearer.clock.skew.seconds": "30",
    "sasl.oauthbearer.expected.audience": "a",
    "sasl.oauthbearer.expected.issuer": "i",
    "sasl.oauthbearer.header.urlencode": "false",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "1",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "1",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "1",
    "sasl.oauthbearer.jwks.endpoint.url": "http://127.0.0.1",
    "sasl.oauthbearer.scope.claim.name": "scope",
    "sasl.oauthbearer.sub.claim.name": "sub",
    "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1",
    "ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384",
    "ssl.enabled.protocols": "TLSv1.3",
    "ssl.endpoint.identification.algorithm": "",
    "ssl.engine.factory.class": "a.B",
    "ssl.key.password": "p",
    "ssl.keymanager.algorithm": "SunX509",
    "ssl.keystore.certificate.chain": "PEM",
    "ssl.keystore.key": "KEY",
    "ssl.keystore.location": "STORE",
    "ssl.keystore.password": "p",
    "ssl.keystore.type": "PEM",
    "ssl.protocol": "TLSv1.3",
    "ssl.provider": "a",
    "ssl.secure.random.implementation": "a",
    "ssl.trustmanager.algorithm": "PKIX",
    "ssl.truststore.certificates": "PEM",
    "ssl.truststore.location": "STORE",
    "ssl.truststore.password": "p",
    "ssl.truststore.type": "PEM",
}


class Pem:
    """A key with a certificate that it signed itself, in all the forms that Java's users have them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cordwood")])
        now = datetime.now(UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(1)
            .not_valid_before(now)
            .not_valid_after(now + timedelta(days=1))
            .sign(self.key, hashes.SHA256())
        )
        self.chain = self.certificate.public_bytes(Encoding.PEM).decode()
        form = (Encoding.PEM, PrivateFormat.PKCS8)
        self.key_text = self.key.private_bytes(*form, NoEncryption()).decode()

    def file(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.write_bytes(content)
        return str(path)
