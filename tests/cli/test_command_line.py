"""The command line: what it prints, what it exits with, and what it does not import."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.commands import run
from support.data_directory import Partition, flipped, put, write_sound_directory

from cordwood.cli import main
from cordwood.disk.files import read_file
from cordwood.disk.posix import PosixFiles

FILES = PosixFiles()


@pytest.fixture
def orders(tmp_path: Path) -> Partition:
    return write_sound_directory(FILES, str(tmp_path))[0]


def damage(path: str) -> None:
    put(FILES, path, flipped(read_file(FILES, path), 8 * 30))


def test_version_and_help() -> None:
    assert run("--version").output.startswith("cordwood, version ")
    result = run("--help")
    assert result.exit_code == 0
    assert "verify" in result.output
    assert "4 corruption" in run("verify", "--help").output


HEAVY = (
    "confluent_kafka",
    "cordwood.broker.",
    "cordwood.embedded.log",
    "cordwood.server",
    "cordwood.spark",
    "cordwood.storage",
    "numpy",
    "pyarrow",
    "pyspark",
    "rich",
)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["topic", "--help"], ["consume", "-h"], ["completion", "zsh"]]
)
def test_help_loads_no_storage_no_client_and_no_spark(arguments: list[str]) -> None:
    """Who asks what there is must not pay for what only some commands need."""
    code = (
        "import sys, contextlib\n"
        "from cordwood.cli import main\n"
        f"with contextlib.suppress(SystemExit): main({arguments!r})\n"
        f"heavy = {HEAVY!r}\n"
        "loaded = [name for name in sys.modules if name.startswith(heavy)]\n"
        "sys.exit(', '.join(sorted(loaded)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Return every command below *group*, and how it is called."""
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


def test_help_of_every_command_has_an_example() -> None:
    every = commands(main)
    for path, _ in every:
        result = run(*path, "--help")
        assert result.exit_code == 0
        assert f"Example: {'printf' if path == ('produce',) else 'cordwood'} " in result.output, path
    print(f"{len(every)} commands have an example")
    assert len(every) >= 18


def test_the_overview_names_every_command_with_a_sentence() -> None:
    overview = run("--help").output
    for path, _ in commands(main):
        assert re.search(rf"^  {path[0]} +[A-Z].+\.$", overview, re.MULTILINE), path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_CORDWOOD_COMPLETE" in result.output
    assert run("completion", "tcsh").exit_code == 2


def test_completion_completes_commands_and_options() -> None:
    """Asked as bash asks it."""
    for words, expected in (
        ("cordwood topi", "topic"),
        ("cordwood topic cr", "create"),
        ("cordwood verify --da", "--data"),
    ):
        done = subprocess.run(
            [Path(sys.executable).with_name("cordwood")],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "_CORDWOOD_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
            },
        )
        assert done.stdout.split() == [f"plain,{expected}"], done


def test_an_unknown_command_or_option_is_usage() -> None:
    assert run("no-such").exit_code == 2
    assert run("verify", "--no-such").exit_code == 2
    assert run("verify", "here", "--data", "there").exit_code == 2


@pytest.mark.usefixtures("orders")
def test_verify_of_a_sound_directory_exits_0_and_says_how_much_was_checked(tmp_path: Path) -> None:
    result = run("verify", str(tmp_path))
    assert result.exit_code == 0, result.output
    last = result.output.splitlines()[-1]
    assert last.startswith(f"{tmp_path}: sound: 2 topics, 3 partitions, 7 segments, 28 frames, 52 records, ")
    assert "2 frames past the mark not checked; findings: 1 note" in last
    assert "torn tail" in result.output


@pytest.mark.usefixtures("orders")
def test_the_directory_comes_from_the_argument_the_option_the_environment_or_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("verify", str(tmp_path)).exit_code == 0
    assert run("verify", "--data", str(tmp_path)).exit_code == 0
    assert run("verify", CORDWOOD_DATA_DIR=str(tmp_path)).exit_code == 0
    monkeypatch.chdir(tmp_path)
    result = run("verify")
    assert result.exit_code == 1
    assert result.output == (
        "Error: data is not a data directory: it has neither meta/ nor topics/; "
        "give one as DIR, with --data or in CORDWOOD_DATA_DIR.\n"
    )
    tmp_path.joinpath("data").symlink_to(tmp_path)
    assert run("verify").exit_code == 0


def test_corruption_exits_4_with_file_and_position(tmp_path: Path, orders: Partition) -> None:
    path = orders.segment(str(tmp_path), 0, "log")
    damage(path)
    result = run("verify", str(tmp_path))
    assert result.exit_code == 4
    assert ": CORRUPT: " in result.output
    # Long paths may be folded, so whole ones are looked for in the JSON.
    report = json.loads(run("verify", str(tmp_path), "--json").output)
    assert not report["sound"]
    assert (report["findings"][0]["path"], report["findings"][0]["position"]) == (path, 0)
    assert report["findings"][0]["severity"] == "corruption"
    assert report["frames"] == 28


def test_a_damaged_index_alone_exits_3(tmp_path: Path, orders: Partition) -> None:
    damage(orders.segment(str(tmp_path), 0, "idx"))
    result = run("verify", str(tmp_path))
    assert result.exit_code == 3
    assert ": check failed: " in result.output
    assert "1 index, 1 note" in result.output


def test_one_topic_alone(tmp_path: Path, orders: Partition) -> None:
    damage(orders.segment(str(tmp_path), 0, "log"))
    assert run("verify", str(tmp_path), "-t", "payments").exit_code == 0
    assert run("verify", str(tmp_path), "-t", "orders").exit_code == 4
    result = run("verify", str(tmp_path), "-t", "no-such")
    assert result.exit_code == 1
    assert result.output == (
        f"Error: there is no topic no-such in {tmp_path}; cordwood topic list shows the existing topics\n"
    )


def test_what_is_in_a_file_is_never_taken_for_markup(tmp_path: Path, orders: Partition) -> None:
    orders.changes = {"topic": "[bold]x[/nothing]"}
    orders.write_state(FILES, str(tmp_path))
    result = run("verify", str(tmp_path))
    assert result.exit_code == 4
    assert "[bold]x[/nothing]" in result.output


@pytest.mark.parametrize("command", [["topic", "list"], ["topic", "create", "t"], ["verify"], ["doctor"]])
def test_an_address_of_an_object_store_is_no_data_directory(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joined to the working directory it would be a directory of that strange name."""
    monkeypatch.chdir(tmp_path)
    result = run(*command, "--data", "s3a://bucket/data")
    assert result.exit_code == 1
    assert "s3a://bucket/data is an address of s3a, but a data directory is on a mounted" in result.stderr
    assert not any(tmp_path.iterdir())
