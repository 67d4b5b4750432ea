"""The client of a command: ``--config client.properties`` as Kafka's tools take it, and ``-X``."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from support.commands import refused, run, said
from support.java_settings import JAVAS, OAUTH, PLAIN, SCRAM, Pem

from cordwood import Broker
from cordwood.errors import ConfigError
from cordwood.kafka_client import KafkaClient
from cordwood.kafka_client.settings import command_settings, read_client_config
from cordwood.kafka_client.tokens import read_token, token_call, token_file

ISSUER_URL = "sasl.oauthbearer.token.endpoint.url"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    return Pem(tmp_path_factory.mktemp("certificates"))


def settings(file: dict[str, str], **options: str) -> dict[str, str]:
    return command_settings(file, options).settings


def test_the_file_of_kafkas_tools_is_read_as_they_read_it(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "# users\nsecurity.protocol = SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM} required \\\n  username="anna" \\\n  password="p=w";\n'
        "ssl.endpoint.identification.algorithm=\nbootstrap.servers=elsewhere:1\ngroup.id=g\nacks=1\n"
    )
    assert settings(read_client_config(str(path))) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "anna",
        "sasl.password": "p=w",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_a_file_for_any_program_of_java_s_is_taken(pem: Pem) -> None:
    """What a command has no use for is left out, so one file serves Kafka's tools, programs and commands."""
    values = {"PEM": pem.chain, "KEY": pem.key_text}
    values["STORE"] = pem.file("both.pem", (pem.chain + pem.key_text).encode())
    foreign = {"security.providers", "ssl.engine.factory.class", "sasl.kerberos.kinit.cmd"}
    foreign |= {name for name in JAVAS if name.startswith("sasl.log") or name.endswith("handler.class")}
    file = {name: values.get(value, value) for name, value in JAVAS.items() if name not in foreign}
    inline = ("ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.truststore.certificates")
    stores = {name for name in file if re.fullmatch(r"ssl\.(key|trust)store\.(location|type|password)", name)}
    for left_out in (stores, set(inline)):
        each = {name: value for name, value in file.items() if name not in left_out}
        found = settings(each)
        assert not {"bootstrap.servers", "group.id", "acks", "transactional.id"} & found.keys()
        for kind in (Producer, AdminClient):
            kind({"log_level": 0, **found})
        Consumer({"log_level": 0, **found, "group.id": "g"})


def test_an_option_overrides_the_file_in_either_spelling(pem: Pem) -> None:
    file = {"sasl.jaas.config": f'{PLAIN} required username="a" password="b";', "fetch.max.wait.ms": "7"}
    assert settings(file, **{"sasl.username": "c", "fetch.wait.max.ms": "9"}) == {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "c",
        "sasl.password": "b",
        "fetch.wait.max.ms": "9",
    }
    scram = {"sasl.jaas.config": f'{SCRAM} required username="a" password="b";'}
    assert settings(scram, **{"sasl.mechanism": "SCRAM-SHA-256"})["sasl.mechanism"] == "SCRAM-SHA-256"
    store = {"ssl.truststore.location": pem.file("trusted.pem", pem.chain.encode())}
    assert settings(store, **{"ssl.ca.location": "/other.pem"}) == {"ssl.ca.location": "/other.pem"}
    unused = command_settings({"max.poll.records": "1"}, {"acks": "1", "request.timeout.ms": "5"}).unused
    assert unused == {"acks": "the command decides it"}, "a file may have settings for others"


def test_certificates_on_one_line_are_what_java_makes_of_them(pem: Pem, tmp_path: Path) -> None:
    """A properties file joins continued lines without a break; OpenSSL needs the breaks."""
    path = tmp_path / "client.properties"
    chain = pem.chain.strip().replace("\n", " \\\n  ")
    key = pem.key_text.strip().replace("\n", "\\\n")
    path.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
        f"ssl.truststore.certificates={chain}\nssl.keystore.certificate.chain={chain}\n"
        f"ssl.keystore.key={key}\n"
    )
    found = settings(read_client_config(str(path)))
    assert found["ssl.ca.pem"] == found["ssl.certificate.pem"] == pem.chain
    assert found["ssl.key.pem"] == pem.key_text
    AdminClient({"log_level": 0, "bootstrap.servers": "localhost:1", **found})


@pytest.mark.parametrize(
    "line",
    [
        "sasl.jaas.config=secret",
        f'sasl.jaas.config={PLAIN} required username="u" pass word="secret";',
        "sasl.password=\\usecret",
        "=secret",
        "sasl.password=secret\n\xff",
        "sasl.password=secret\nssl.truststore.location=/nowhere",
        "sasl.password=secret\nsasl.login.class=a.B",
        "sasl.password=secret\nno.such=1",
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_its_passwords(line: str, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n{line}\n", encoding="latin-1")
    sentence = refused("topic", "list", "--bootstrap", "localhost:1", "--config", path)
    assert "secret" not in sentence


def test_no_representation_has_a_password() -> None:
    found = command_settings({}, {"sasl.password": "secret"})
    assert found.settings["sasl.password"] == "secret"
    assert "secret" not in repr(found)


# --- commands ----------------------------------------------------------------------------------------


def test_every_way_to_give_settings_reaches_the_client(tmp_path: Path) -> None:
    """With settings that cannot work: a command that ignored them would succeed."""
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=NONSENSE\n")
    with Broker(tmp_path / "data") as broker:
        where = ("--bootstrap", broker.bootstrap)
        said("topic", "create", "orders", *where)
        sentence = 'Invalid value "NONSENSE" for configuration property "security.protocol"'
        for given in (
            ("--config", path),
            ("--command-config", path),
            ("-X", "security.protocol=NONSENSE"),
        ):
            assert sentence in refused("topic", "list", *where, *given)
        assert sentence in refused("topic", "create", "o", *where, "--command-config", path)
        by_variable = {"CORDWOOD_CLIENT_CONFIG": str(path)}
        assert sentence in run("topic", "list", *where, **by_variable).stderr
        assert (
            sentence
            in run("topic", "create", "o", *where, "--config", "retention.ms=1", **by_variable).stderr
        )
        overridden = ("-X", "security.protocol=PLAINTEXT")
        assert "orders" in run("topic", "list", *where, *overridden, **by_variable).stdout
        # The server that holds the directory is a broker like any other.
        assert sentence in refused(
            "topic", "create", "o", "--data", tmp_path / "data", "--command-config", path
        )
    assert run("topic", "list", "--data", tmp_path / "data", **by_variable).exit_code == 0


def test_an_option_without_effect_is_said_and_one_of_java_s_is_translated(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        given = ("--bootstrap", broker.bootstrap, "-X", "max.poll.records=5", "-X", "fetch.max.wait.ms=5")
        done = run("topic", "list", *given)
    assert done.exit_code == 0
    assert done.stderr == ("cordwood: -X max.poll.records has no effect: records come by the megabyte\n")


# --- tokens ------------------------------------------------------------------------------------------


def token(**claims: object) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in ({"alg": "x"}, claims)]
    return ".".join(part.rstrip("=") for part in (*parts, "c2ln"))


def test_a_token_comes_from_the_file_that_an_address_names(tmp_path: Path) -> None:
    """Each time anew, so that another program may renew it."""
    path = tmp_path / "a token"
    file = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
        "sasl.jaas.config": f'{OAUTH} required extension_pool="x";',
        ISSUER_URL: path.as_uri(),
    }
    found = settings(file)
    assert token_file(found) == str(path)
    call = token_call(found)
    for expiry in (1 << 32, 1 << 33):
        path.write_text(token(sub="anna", exp=expiry) + "\n")
        assert call("") == (token(sub="anna", exp=expiry), float(expiry), "", {"pool": "x"})
    KafkaClient(
        {"bootstrap.servers": "localhost:1", "security.protocol": "SASL_PLAINTEXT", **found}, 1
    ).close()


def test_a_file_without_a_token_is_refused_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for content in (b"secret", b"", b"secret.\xff.x", b"a.b.c\nsecret"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="has no JSON Web Token") as caught:
            read_token(str(path))
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_token(str(tmp_path / "none"))
