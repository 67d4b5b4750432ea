"""Kafka's own command-line tools over SASL_SSL, with the file that they take for it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from interop.kafka_jars import KAFKA_VERSION, MAIN_CLASSES, java_command, run_tool
from interop.logins import java_settings
from interop.report import Report
from support.secure_clients import Login
from support.secured import Secured, write_properties

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

PASSWORD = "bought-in-the-market"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured")) as running:
        yield running


class Operator:
    """Runs tools as one user."""

    def __init__(self, secured: Secured, login: Login, directory: Path) -> None:
        config = write_properties(directory / f"{login.user}.properties", java_settings(login))
        self._place = ("--bootstrap-server", secured.addresses["USERS"], "--command-config", str(config))

    def run(self, name: str, *arguments: str, given: str = "") -> str:
        """Run a tool and return what it printed."""
        return run_tool(MAIN_CLASSES[name], *arguments, *self._place, given=given)

    def refused(self, name: str, *arguments: str) -> str:
        """Run a tool that must fail and return what it said; some tools end with status 0 all the same."""
        command = java_command(MAIN_CLASSES[name], [*arguments, *self._place])
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode or "Error: " in done.stdout
        return done.stdout + done.stderr


def test_a_user_that_kafka_configs_adds_works_with_what_kafka_acls_allows(
    secured: Secured, report: Report, tmp_path: Path
) -> None:
    def check(name: str, done: str) -> AbstractContextManager[None]:
        return report.check("tools", name, KAFKA_VERSION, f"over SASL_SSL: {done}")

    anna = Operator(secured, secured.login("SCRAM-SHA-512"), tmp_path)
    as_cora = secured.login("SCRAM-SHA-256").but(user="cora", password=PASSWORD)
    cora = Operator(secured, as_cora, tmp_path)
    user = ("--entity-type", "users", "--entity-name", "cora")

    with check("kafka-topics", "create and list"):
        anna.run("kafka-topics", "--create", "--topic", "orders", "--partitions", "1")
        assert anna.run("kafka-topics", "--list").split() == ["orders"]
    with check("kafka-configs", "add, describe and remove a SCRAM user"):
        assert "SaslAuthenticationException" in cora.refused("kafka-topics", "--list")
        secret = f"SCRAM-SHA-256=[iterations=8192,password={PASSWORD}]"
        anna.run("kafka-configs", "--alter", "--add-config", secret, *user)
        described = anna.run("kafka-configs", "--describe", *user)
        assert "SCRAM-SHA-256=iterations=8192" in described
        assert PASSWORD not in described
        assert cora.run("kafka-topics", "--list").split() == []
    with check("kafka-acls", "add and list"):
        assert "does not exist" in cora.refused("kafka-topics", "--describe", "--topic", "orders")
        cora_may = ("--add", "--allow-principal", "User:cora", "--topic", "orders")
        anna.run("kafka-acls", *cora_may, "--producer")
        anna.run("kafka-acls", *cora_may, "--consumer", "--group", "team")
        assert "ClusterAuthorizationException" in cora.refused("kafka-acls", "--list")
        assert "principal=User:cora" in anna.run("kafka-acls", "--list", "--topic", "orders")
    with check("kafka-console-producer", "as a user with an ACL"):
        cora.run("kafka-console-producer", "--topic", "orders", given="axe\nsaw\n")
    with check("kafka-console-consumer", "as a user with an ACL"):
        reading = ("--topic", "orders", "--group", "team", "--from-beginning", "--max-messages", "2")
        assert cora.run("kafka-console-consumer", *reading).split() == ["axe", "saw"]
    with check("kafka-consumer-groups", "describe, and nothing of other groups"):
        described = cora.run("kafka-consumer-groups", "--describe", "--group", "team")
        assert re.search(r"^team +orders +0 +2 +2 +0 ", described, re.MULTILINE)
        assert anna.run("kafka-consumer-groups", "--list").split() == ["team"]
        other = cora.refused("kafka-consumer-groups", "--describe", "--group", "others")
        assert "GroupAuthorizationException" in other
    with check("kafka-configs", "add, describe and remove a SCRAM user"):
        anna.run("kafka-configs", "--alter", "--delete-config", "SCRAM-SHA-256", *user)
        assert "SaslAuthenticationException" in cora.refused("kafka-topics", "--list")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_tool_says_that_the_password_is_wrong(
    mechanism: str, secured: Secured, report: Report, tmp_path: Path
) -> None:
    anna = Operator(secured, secured.login(mechanism).but(password="not-this-one"), tmp_path)
    with report.check("tools", "kafka-topics", KAFKA_VERSION, "over SASL_SSL: told of a wrong password"):
        told = anna.refused("kafka-topics", "--list")
        assert "SaslAuthenticationException: Authentication failed" in told
        assert "not-this-one" not in told
