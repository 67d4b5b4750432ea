"""Names that people type: completed by the shell, and suggested where one is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.commands import environment, refused, run, said
from support.topic_commands import NEW_OR_ELSEWHERE, READING, READING_WITH_SPARK

import cordwood
from cordwood import Broker
from cordwood.cli import main
from cordwood.errors import UnknownTopic
from cordwood.tenancy import suggest
from cordwood.wording import nearest


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Make a directory with topics, one of them of a tenant, and a group."""
    path = tmp_path / "data"
    with cordwood.open(path) as log:
        for name in ("orders", "ordinary", "clicks", "ordeals@7"):
            log.create_topic(name)
        log.topic("orders").append(b"axe")
    said("consume", "-t", "orders", "-e", "-G", "billing", "--data", path)
    return path


# --- completion -------------------------------------------------------------------------------------


def completed(words: str, **more: str) -> list[str]:
    """Return what bash is told to offer for the last of *words*, which may be empty."""
    done = subprocess.run(
        [Path(sys.executable).with_name("cordwood")],
        capture_output=True,
        text=True,
        env={
            **environment(more),
            "_CORDWOOD_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
    )
    assert done.stderr == "", "a shell shows it between the words"
    return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]


def test_topics_and_groups_of_a_directory_are_completed(data: Path) -> None:
    where = f"--data {data}"
    assert completed(f"cordwood consume {where} -t ord") == ["ordeals@7", "orders", "ordinary"]
    assert completed("cordwood produce -t cl", CORDWOOD_DATA_DIR=str(data)) == ["clicks"]
    assert completed(f"cordwood topic describe {where} or") == ["ordeals@7", "orders", "ordinary"]
    assert completed(f"cordwood topic describe {where} __c") == ["__consumer_offsets"]
    assert "__consumer_offsets" not in completed(f"cordwood topic describe {where} ")
    assert completed(f"cordwood group describe {where} b") == ["billing"]
    assert completed(f"cordwood consume {where} -t orders -G ") == ["billing"]
    assert completed(f"cordwood topic create {where} or") == [], "a new topic gets a new name"


def test_topics_and_groups_are_completed_beside_and_by_a_server(data: Path) -> None:
    with Broker(data) as broker:
        assert completed(f"cordwood consume --data {data} -t cl") == ["clicks"]
        by_address = f"--bootstrap {broker.bootstrap}"
        assert completed(f"cordwood consume {by_address} -t ord") == ["orders", "ordinary"], "one org's"
        assert completed(f"cordwood group delete {by_address} b") == ["billing"]


def test_nothing_is_completed_and_nothing_said_where_names_cannot_be_read(data: Path, tmp_path: Path) -> None:
    assert completed(f"cordwood consume --data {tmp_path / 'none'} -t o") == []
    assert completed(f"cordwood consume --data {tmp_path} -t o") == [], "not a data directory"
    assert completed("cordwood consume --bootstrap localhost:1 -t o") == []
    assert not tmp_path.joinpath("none").exists()
    for path in data.glob("meta/catalogue*"):
        path.write_bytes(b"damaged")
    assert completed(f"cordwood consume --data {data} -t o") == []


# --- did you mean -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("topc list", "topic"),
        ("verfy", "verify"),
        ("topic lst", "list"),
        ("group describ", "describe"),
        ("checkpoint verfy", "verify"),
        ("segment dmp", "dump"),
        ("pipeline materialise", "materialize"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(typed: str, meant: str) -> None:
    wrong = next(word for word in reversed(typed.split()) if word != "list")
    assert refused(*typed.split(), code=2) == f"there is no command {wrong}; did you mean {meant}?"


def test_a_command_like_no_other_is_refused_without_a_guess() -> None:
    assert refused("bake", code=2) == "there is no command bake."
    assert refused("topic", "bake", code=2) == "there is no command bake."
    assert "No such option" in run("--bake").stderr


def commands_with_a_topic() -> set[str]:
    """Return all commands that take the name of a topic."""
    found: set[str] = set()

    def walk(command: click.Command, context: click.Context, words: tuple[str, ...]) -> None:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, click.Context(inner, info_name=name, parent=context), (*words, name))
        elif any(each.name in ("topic", "topics") for each in command.params) or words[0] == "topic":
            found.add(" ".join(words))

    walk(main, click.Context(main), ())
    return found - {"topic list"}


def test_every_command_that_takes_a_topic_is_asked_for_a_mistyped_one() -> None:
    asked = [*READING, *READING_WITH_SPARK, *NEW_OR_ELSEWHERE]
    assert sorted(asked) == sorted(commands_with_a_topic())


@pytest.mark.parametrize("command", READING)
def test_a_mistyped_topic_is_answered_with_the_one_that_was_meant(data: Path, command: str) -> None:
    sentence = refused(*command.split(), *READING[command].split(), "--data", data)
    assert sentence.startswith("there is no topic ordres")
    assert sentence.endswith("; did you mean orders?")


def test_a_mistyped_topic_at_a_broker(data: Path) -> None:
    with Broker(data) as broker:
        sentence = refused("consume", "-t", "ordres", "-e", "--bootstrap", broker.bootstrap)
        assert sentence == "there is no topic ordres; did you mean orders?"


def test_a_topic_like_no_other_is_answered_with_where_to_look(data: Path) -> None:
    sentence = refused("consume", "-t", "invoices", "-e", "--data", data)
    assert sentence == "there is no topic invoices; cordwood topic list shows the existing topics"


def test_the_error_of_the_library_names_both_topics(data: Path) -> None:
    with cordwood.open(data, read_only=True) as log:
        with pytest.raises(UnknownTopic, match=r"there is no topic clickz; did you mean clicks\?") as caught:
            log.topic("clickz")
        assert (caught.value.missing, caught.value.suggestion) == ("clickz", "clicks")
        with pytest.raises(UnknownTopic) as caught:
            log.scan("invoices")
        assert (caught.value.missing, caught.value.suggestion) == ("invoices", None)


def test_a_topic_of_another_org_and_an_internal_one_are_never_suggested() -> None:
    known = ["orders", "clicks@7", "clicks@70", "__clicks", "__consumer_offsets"]
    assert suggest("click", known) is None
    assert suggest("click@7", known) == "clicks@7"
    assert suggest("order@7", known) is None
    assert suggest("_consumer_offsets", known) is None
    assert suggest("orders@x", known) is None, "not a name of any org"
    assert suggest("order", [*known, "order@x", "order@0"]) == "orders", "as a damaged catalogue has them"


def test_a_suggestion_among_very_many_names_is_quick() -> None:
    names = [f"topic-{number}" for number in range(100_000)] + ["orders"]
    assert nearest("oders", names) == "orders"
