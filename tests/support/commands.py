"""The command line in this process, where that is enough, and as one of its own, where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import click
from click.testing import CliRunner, Result

from cordwood.cli import main

COMMAND = [sys.executable, "-m", "cordwood.cli"]


def run(*arguments: object, stdin: bytes | str | None = None, **environment: str | None) -> Result:
    """Run a command here."""
    return CliRunner().invoke(
        main, [str(each) for each in arguments], input=stdin, env={"CORDWOOD_DATA_DIR": None, **environment}
    )


def said(*arguments: object, stdin: bytes | str | None = None) -> str:
    """Run a command that succeeds here, and return what it prints."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def refused(*arguments: object, code: int = 1, stdin: bytes | str | None = None) -> str:
    """Run a command here that fails with *code*, and return its one sentence."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == code, (result.exit_code, result.output)
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("Error: "), result.stderr
    # Usage errors say how to find out more; all others are one sentence and nothing else.
    assert code == 2 or len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[-1].removeprefix("Error: ")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a command that finds no data directory by itself."""
    kept = {name: value for name, value in os.environ.items() if name != "CORDWOOD_DATA_DIR"}
    return {**kept, **(more or {})}


def started(*arguments: object) -> subprocess.Popen[bytes]:
    """Start a command as a process of its own."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def with_address() -> dict[str, click.Command]:
    """Return all commands that take an address, by their names."""
    found = {}

    def walk(command: click.Command, context: click.Context, words: tuple[str, ...]) -> None:
        if any(each.name == "bootstrap" for each in command.params):
            found[" ".join(words)] = command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, click.Context(inner, info_name=name, parent=context), (*words, name))

    walk(main, click.Context(main), ())
    return found
