"""``kafka.`` options in Java's spelling: taken, translated, without effect, or refused with what to do."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    pkcs12,
)
from support.java_settings import JAVAS, OAUTH, PLAIN, SCRAM, Pem

from cordwood.errors import ConfigError
from cordwood.kafka_client.settings import ClientSettings, with_certificates
from cordwood.spark.client import client_settings
from cordwood.spark.sessions.java import find_java

REFUSED = {
    "auto.offset.reset",
    "enable.auto.commit",
    "interceptor.classes",
    "key.deserializer",
    "value.deserializer",
    "key.serializer",
    "value.serializer",
    "partitioner.class",
    "transactional.id",
    "security.providers",
    "sasl.client.callback.handler.class",
    "sasl.kerberos.kinit.cmd",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "ssl.engine.factory.class",
}


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    return Pem(tmp_path_factory.mktemp("certificates"))


def made(settings: ClientSettings, kind: type) -> None:
    """Let librdkafka judge: it names a setting that it does not know, or a value that it does not take."""
    group = {"group.id": "g"} if kind is Consumer else {}
    kind({"log_level": 0, **group, **with_certificates(settings.settings, prefix="kafka.")})


@pytest.mark.parametrize("writing", [False, True])
def test_every_setting_of_javas_clients_is_known_one_way_or_another(writing: bool, pem: Pem) -> None:
    """None ends in librdkafka's "No such configuration property"."""
    values = {"PEM": pem.chain, "KEY": pem.key_text}
    values["STORE"] = pem.file("both.pem", (pem.chain + pem.key_text).encode())
    given = {name: values.get(value, value) for name, value in JAVAS.items()}
    refused = set()
    for name, value in JAVAS.items():
        with contextlib.suppress(ConfigError):
            client_settings({name: value}, writing=writing)
            continue
        with pytest.raises(ConfigError, match=f"^kafka.{name} is ") as caught:
            client_settings({name: value}, writing=writing)
        assert caught.value.name == f"kafka.{name}"
        refused.add(name)
        del given[name]
    stores = [name for name in given if re.fullmatch(r"ssl\.(key|trust)store\.\w+", name)]
    texts = [name for name, value in given.items() if value in (pem.chain, pem.key_text)]
    for left_out in (stores, texts):
        # A client is given files or texts, not both.
        each = {name: value for name, value in given.items() if name not in left_out or value == "p"}
        found = client_settings(each, writing=writing)
        for kind in (Producer, AdminClient) if writing else (Consumer, AdminClient):
            made(found, kind)
    of_the_other = {"key.serializer", "value.serializer", "partitioner.class", "transactional.id"}
    if writing:
        of_the_other = {"auto.offset.reset", "enable.auto.commit", "key.deserializer", "value.deserializer"}
    assert refused == REFUSED - of_the_other


def test_java_s_names_and_values_become_librdkafka_s() -> None:
    given = {
        "bootstrap.servers": "h:1",
        "request.timeout.ms": "7000",
        "default.api.timeout.ms": "2500",
        "receive.buffer.bytes": "-1",
        "max.partition.fetch.bytes": "9",
        "ssl.endpoint.identification.algorithm": "",
        "compression.type": "zstd",
        "compression.zstd.level": "3",
        "compression.gzip.level": "9",
        "max.poll.records": "5",
        "group.id": "g",
    }
    found = client_settings(given, writing=False)
    assert found.settings == {
        "bootstrap.servers": "h:1",
        "socket.timeout.ms": "7000",
        "socket.receive.buffer.bytes": "0",
        "fetch.message.max.bytes": "9",
        "ssl.endpoint.identification.algorithm": "none",
        "compression.type": "zstd",
        "compression.level": "3",
        "group.id": "g",
    }
    assert found.answer_seconds == 2.5
    assert found.unused.keys() == {"kafka.max.poll.records", "kafka.compression.gzip.level"}
    with pytest.raises(ConfigError, match=r"default.api.timeout.ms='soon': expected a whole number"):
        client_settings({"default.api.timeout.ms": "soon"}, writing=False)


@pytest.mark.parametrize(
    ("text", "mechanism", "settings"),
    [
        (
            f'{PLAIN} required username="anna" password="p\\"w;d\\\\";',
            None,
            {"sasl.mechanism": "PLAIN", "sasl.username": "anna", "sasl.password": 'p"w;d\\'},
        ),
        (
            f"\n kafkashaded.{PLAIN}\n required\n username='a'\n password=b ; \n",
            "PLAIN",
            {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"},
        ),
        (
            f'{SCRAM} required username="a" password="b" tokenauth=false;',
            "SCRAM-SHA-512",
            {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "a", "sasl.password": "b"},
        ),
        (
            f'{OAUTH} required clientId="i" clientSecret="s" scope="r w" extension_pool="x";',
            "OAUTHBEARER",
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "i",
                "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.scope": "r w",
                "sasl.oauthbearer.extensions": "pool=x",
            },
        ),
        (
            'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/k.keytab" '
            'principal="spark/host@REALM" serviceName="kafka";',
            None,
            {
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.keytab": "/k.keytab",
                "sasl.kerberos.principal": "spark/host@REALM",
                "sasl.kerberos.service.name": "kafka",
            },
        ),
    ],
)
def test_a_login_module_becomes_user_and_password(
    text: str, mechanism: str | None, settings: dict[str, str]
) -> None:
    given = {"sasl.jaas.config": text, **({} if mechanism is None else {"sasl.mechanism": mechanism})}
    assert client_settings(given, writing=False).settings == settings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("secret", "is not one login module"),
        (f'{PLAIN} required username="u" password="secret"', "is not one login module"),
        (f'{PLAIN} required username="u" pass word="secret";', "is not name=value"),
        (f'{PLAIN} required password="secret";', "PlainLoginModule is given no username"),
        (f'{PLAIN} required a=secret; {PLAIN} required username="u" password="secret";', "is not name=value"),
        (f'{SCRAM} required username="u" password="secret";', "needs SCRAM-SHA-256 or SCRAM-SHA-512"),
        (f'{OAUTH} required unsecuredLoginStringClaim_sub="secret";', "needs clientId and clientSecret"),
        ('com.sun.security.auth.module.JndiLoginModule required a="secret";', "names JndiLoginModule, but"),
    ],
)
def test_a_login_module_that_cannot_be_had_is_refused_and_its_password_not_shown(
    text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        client_settings({"sasl.jaas.config": text}, writing=False)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "plugin.library.paths",
        "ssl.engine.location",
        "ssl.engine.id",
        "ssl.providers",
        "sasl.kerberos.kinit.cmd",
        "error_cb",
        "oauth_cb",
        "logger",
    ],
)
@pytest.mark.parametrize("writing", [False, True])
def test_an_option_cannot_make_the_client_run_code(name: str, writing: bool) -> None:
    """Whoever may write SQL may write options."""
    with pytest.raises(ConfigError, match=f"kafka.{name} is"):
        client_settings({name: "/tmp/evil.so"}, writing=writing)


def test_nothing_for_a_shell_reaches_the_command_of_kerberos() -> None:
    for name in ("principal", "keytab", "service.name"):
        with pytest.raises(ConfigError, match="expected letters, digits"):
            client_settings({f"sasl.kerberos.{name}": "x; touch /tmp/evil"}, writing=False)
    module = 'com.sun.security.auth.module.Krb5LoginModule required keyTab="$(touch /tmp/evil)";'
    with pytest.raises(ConfigError, match="expected letters, digits"):
        client_settings({"sasl.jaas.config": module}, writing=True)


# --- stores ------------------------------------------------------------------------------------------


def test_a_pem_file_is_a_store_whatever_it_is_called(pem: Pem) -> None:
    trusted, own = (
        pem.file("ca.jks", pem.chain.encode()),
        pem.file("own", (pem.chain + pem.key_text).encode()),
    )
    given = {"ssl.truststore.location": trusted, "ssl.truststore.type": "PEM", "ssl.keystore.location": own}
    found = client_settings({"security.protocol": "SSL", **given}, writing=False)
    assert with_certificates(found.settings, prefix="kafka.") == {
        "security.protocol": "SSL",
        "ssl.ca.location": trusted,
        "ssl.certificate.location": own,
        "ssl.key.location": own,
    }
    made(found, Consumer)


def test_a_store_that_java_makes_by_default_is_read(pem: Pem) -> None:
    """PKCS #12, once made by Java itself: what it trusts, and the key it shows."""
    source, store = pem.file("ca.pem", pem.chain.encode()), pem.directory / "trusted.jks"
    keytool = Path(find_java()) / "bin" / "keytool"
    if not keytool.exists():
        pytest.skip("this Java has no keytool")
    importing = ["-importcert", "-noprompt", "-alias", "a", "-file", source, "-keystore", str(store)]
    subprocess.run([keytool, *importing, "-storepass", "secret"], check=True, capture_output=True)
    name, encryption = b"own", BestAvailableEncryption(b"secret")
    own = pkcs12.serialize_key_and_certificates(name, pem.key, pem.certificate, None, encryption)
    given = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(store),
        "ssl.truststore.password": "secret",
        "ssl.keystore.location": pem.file("own.p12", own),
        "ssl.keystore.password": "secret",
    }
    found = client_settings(given, writing=True)
    assert with_certificates(found.settings, prefix="kafka.")["ssl.ca.pem"] == pem.chain
    made(found, Producer)
    found.settings["ssl.truststore.password"] = "wrong"
    with pytest.raises(ConfigError, match=r"does not open with kafka.ssl.truststore.password"):
        with_certificates(found.settings, prefix="kafka.")
    del found.settings["ssl.truststore.location"], found.settings["ssl.keystore.password"]
    with pytest.raises(ConfigError, match=r"kafka.ssl.keystore.password is missing"):
        with_certificates(found.settings, prefix="kafka.")


def test_a_store_that_only_java_reads_is_refused_with_what_to_do(pem: Pem) -> None:
    old = pem.file("old.jks", bytes.fromhex("feedfeed00000002"))
    with pytest.raises(ConfigError, match=r"only Java reads: keytool -list -rfc .*old.jks > ca.pem"):
        with_certificates({"ssl.truststore.location": old}, prefix="kafka.")
    with pytest.raises(ConfigError, match=r"only Java reads: keytool -importkeystore .* PKCS12"):
        with_certificates({"ssl.keystore.location": old}, prefix="kafka.")
    with pytest.raises(ConfigError, match=r"kafka.ssl.truststore.location: /nowhere cannot be read: No such"):
        with_certificates({"ssl.truststore.location": "/nowhere"}, prefix="kafka.")
