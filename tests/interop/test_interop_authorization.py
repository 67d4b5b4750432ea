"""Who may do what: every API and version, asked by the same principals of ours and of Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from interop.apache_kafka import apache_kafka, free_ports
from interop.authorization import ADMIN, PASSWORDS, PRINCIPALS, Asked, Case, cases, creations
from interop.kafka_jars import KAFKA_VERSION
from interop.report import Report

from cordwood import Broker
from cordwood.protocol.apis import ApiKey

# What is not there yet is fetched, which counts.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{ADMIN}",
}
_NO_CREATION = {"auto.create.topics.enable": "false"}
#: Requests whose answers differ by what the brokers are, and why.
_DIFFERENT = {
    "ELECT_LEADERS everything": "there is one replica of everything here, so there is no partition to list",
    "INCREMENTAL_ALTER_CONFIGS of loggers": "the logger is one of Cordwood",
    "INCREMENTAL_ALTER_CONFIGS of loggers of missing": "the logger is one of Cordwood",
    "PRODUCE in a transaction": "there is no such transaction, for which there are several errors",
    "PRODUCE in a transaction of missing": "there is no such transaction, for which there are several errors",
}
#: Topics are created later than Kafka answers, so it says that there is none yet.
_LATER = ("METADATA of a new topic",)
#: The errors of who may not, and those beside them that hide what there is.
_DENIED = (29, 30, 31, 53)


@contextmanager
def ours(directory: Path, settings: Mapping[str, str]) -> Iterator[Asked]:
    """Run a broker of ours with the users, and connect all of them."""
    secured, plain = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = {
        **_AUTHORIZER,
        **settings,
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,OPEN:PLAINTEXT",
    }
    listen = f"CLIENTS://{secured},OPEN://{plain}"
    with (
        Broker(directory, listen=listen, config=config, users=PASSWORDS),
        Asked(secured, plain, "PLAIN") as asked,
    ):
        yield asked


@contextmanager
def apaches(directory: Path, settings: Mapping[str, str]) -> Iterator[Asked]:
    """Run Apache Kafka with the same users, and connect all of them."""
    listed = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="{ADMIN}" password="{PASSWORDS[ADMIN]}" {listed};'
    config = {
        **_AUTHORIZER,
        **settings,
        "inter.broker.listener.name": "CLIENTS",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": jaas,
        "listener.name.controller.plain.sasl.jaas.config": jaas,
    }
    listeners = {"CLIENTS": "SASL_PLAINTEXT", "CONTROLLER": "SASL_PLAINTEXT"}
    with (
        apache_kafka(directory, config, listeners) as broker,
        Asked(broker.addresses["CLIENTS"], broker.bootstrap, "PLAIN") as asked,
    ):
        yield asked


def denials(answer: Any) -> list[int]:
    """Return the codes of an answer that say that somebody may not."""
    if isinstance(answer, dict):
        return sorted(code for each in answer.values() for code in denials(each))
    if isinstance(answer, list):
        return sorted(code for each in answer for code in denials(each))
    return [answer] if answer in _DENIED else []


Common = Mapping[ApiKey, range]


def compared(
    directory: Path, settings: Mapping[str, str], asked: Callable[[Common], Iterable[Case]]
) -> tuple[int, int]:
    """Ask both brokers the same; return the number of answers, all equal, and of refusals among them."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(run(directory / run.__name__, settings)) for run in (apaches, ours)]
        spoken = [broker.versions() for broker in brokers]
        common = {
            key: range(max(each[key].start for each in spoken), min(each[key].stop for each in spoken))
            for key in spoken[0].keys() & spoken[1].keys()
        }
        for broker in brokers:
            broker.prepare()
        apache, our = (broker.answers(asked(common)) for broker in brokers)
    assert apache.keys() == our.keys()
    wrong = []
    for name, expected in apache.items():
        key, _, about = name.rpartition(" ")[0].split(" ", 2)
        found = our[name]
        if f"{key} {about}" in _DIFFERENT or f"{key} {about}".startswith(_LATER):
            expected, found = denials(expected), denials(found)
        if expected != found:
            wrong.append(f"{name}:\n  apache {json.dumps(expected)}\n  ours   {json.dumps(found)}")
    refused = sum(bool(denials(answer)) for answer in apache.values())
    print(f"{len(apache)} answers to {len(PRINCIPALS)} principals compared, {refused} of them refusals")
    assert not wrong, f"{len(wrong)} answers differ:\n" + "\n".join(wrong[:40])
    return len(apache), refused


def test_who_may_do_what_is_what_apache_kafka_says(report: Report, tmp_path: Path) -> None:
    with report.check("tools", "Apache Kafka's authorizer", KAFKA_VERSION, "the same answers"):
        answers, refused = compared(tmp_path, _NO_CREATION, cases)
        assert answers > 12_000
        assert refused > 6_000


def test_who_may_create_topics_by_naming_them_is_what_apache_kafka_says(tmp_path: Path) -> None:
    answers, refused = compared(tmp_path, {}, creations)
    assert answers > 400
    assert refused > 200
