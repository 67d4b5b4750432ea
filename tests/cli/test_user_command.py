"""``cordwood user``: on a directory, on one that a server holds, and on a broker by its address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import refused, said
from support.sasl import SaslClient

from cordwood import Broker

Where = list[object]
LISTEN = "OPEN://localhost:0,USERS://localhost:0"
CONFIG = {
    "listener.security.protocol.map": "OPEN:PLAINTEXT,USERS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms": "1",
}


@pytest.fixture(params=["directory", "held", "broker"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Where]:
    """Say where: a directory, one that a server holds, or that server by its address."""
    place: Where = ["--data", tmp_path / "data"]
    if request.param == "directory":
        yield place
        return
    with Broker(tmp_path / "data", listen=LISTEN, config=CONFIG) as running:
        yield place if request.param == "held" else ["--bootstrap", running.addresses["OPEN"]]


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """A file with a password."""
    file = tmp_path / "password"
    file.write_text("sup3r-secret\nsecond line\n")
    return file


def listed(where: Where) -> list[tuple[str, str, int]]:
    return [
        (each["user"], each["mechanism"], each["iterations"])
        for each in json.loads(said("user", "list", "--json", *where))
    ]


def test_users_are_added_listed_and_removed(where: Where, password: Path) -> None:
    given = ("--password-file", password)
    assert said("user", "add", "alice", *given, *where) == (
        "added user alice for SCRAM-SHA-256 and SCRAM-SHA-512\n"
    )
    only = ("--mechanism", "scram-sha-512", "--iterations", "8192")
    assert said("user", "add", "bob", *only, *given, *where) == "added user bob for SCRAM-SHA-512\n"
    alice = [("alice", "SCRAM-SHA-256", 4096), ("alice", "SCRAM-SHA-512", 4096)]
    assert listed(where) == [*alice, ("bob", "SCRAM-SHA-512", 8192)]
    assert said("user", "remove", "alice", "--mechanism", "SCRAM-SHA-256", *where) == (
        "removed user alice for SCRAM-SHA-256\n"
    )
    assert said("user", "remove", "bob", *where) == "removed user bob for SCRAM-SHA-512\n"
    assert listed(where) == alice[1:]
    assert "there is no such user bob" in refused("user", "remove", "bob", *where)


def test_a_client_that_may_not_see_users_is_told_so() -> None:
    """Through confluent-kafka the answer would crash the process."""
    with Broker(config={"authorizer.class.name": "cordwood"}) as running:
        told = refused("user", "list", "--bootstrap", running.bootstrap)
        assert "listing users at" in told
        assert "this needs DESCRIBE on the cluster" in told
        assert "this needs DESCRIBE on the cluster" in refused(
            "user", "remove", "alice", "--bootstrap", running.bootstrap
        )


def test_a_server_that_holds_the_directory_and_wants_tls_is_named_with_what_to_give(
    tmp_path: Path, password: Path
) -> None:
    data = tmp_path / "data"
    with Broker(data, tls=True, users={"admin": "battery-staple"}):
        add = ("user", "add", "alice", "--password-file", password)
        told = refused(*add, "--data", data, "--timeout", "1")
    assert "holds the data directory" in told
    assert "--config client.properties" in told


def test_a_user_of_the_command_gets_in_and_the_password_is_nowhere(tmp_path: Path, password: Path) -> None:
    data = tmp_path / "data"
    output = said("user", "add", "alice", "--password-file", password, "--data", data)
    with Broker(data, listen=LISTEN, config=CONFIG) as running:
        said("user", "add", "bob", "--password-file", password, "--bootstrap", running.addresses["OPEN"])
        for name in ("alice", "bob"):
            for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
                with SaslClient(running.addresses["USERS"]) as client:
                    client.log_in(name, "sup3r-secret", mechanism)
    stored = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert b"sup3r" not in stored + output.encode()


def test_the_password_is_read_from_standard_input_or_asked_for_but_never_an_argument(tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data")
    assert "added user alice" in said("user", "add", "alice", "--password-file", "-", *data, stdin="secret\n")
    assert "give --password-file" in refused("user", "add", "alice", *data, code=2)
    assert "No such option" in refused("user", "add", "alice", "--password", "secret", *data, code=2)


@pytest.mark.parametrize("content", ["", "\n", "a" * 1025, "a\0b"])
def test_a_password_that_no_client_can_send_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "password"
    file.write_text(content)
    text = refused("user", "add", "alice", "--password-file", file, "--data", tmp_path / "data")
    assert "a password has 1 to 1024 bytes" in text
    assert not (tmp_path / "data").exists()
