"""docs/cli.md: every command on the page is run, and prints what the page says."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from support.commands import SECONDS_MAX, environment

from cordwood.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
PORT = "9092"


def examples(page: str) -> Iterator[tuple[str, str]]:
    """Yield each command of the page and what it is to print."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = example.partition("\n")
            yield command, output


class Shell:
    """Runs the commands of a page in one directory; what ends in ``&`` runs on until ``kill %1``."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = str(free.getsockname()[1])
        self._directory = directory
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        self._environment = environment({"PATH": path, "LC_ALL": "C.UTF-8"})
        self._server: subprocess.Popen[str] | None = None

    def run(self, command: str) -> str:
        """Return what a command prints, on both streams."""
        command = command.replace(PORT, self._port)
        if command == "kill %1":
            self.close()
            return ""
        if command.endswith("&"):
            arguments = command.removesuffix("&").split()
            self._server = subprocess.Popen(
                arguments, cwd=self._directory, env=self._environment, stdout=subprocess.PIPE, text=True
            )
            assert self._server.stdout is not None
            return self._server.stdout.readline().replace(self._port, PORT)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
        )
        return done.stdout.replace(self._port, PORT)

    def close(self) -> None:
        """End the server, if it runs."""
        server, self._server = self._server, None
        if server is not None:
            server.terminate()
            server.communicate(timeout=SECONDS_MAX)
            assert server.returncode == 0


def matches(promised: str, printed: str) -> bool:
    """Compare, with ``…`` standing for anything within a line."""
    pattern = r"[^\n]*".join(re.escape(part) for part in promised.split("…"))
    return re.fullmatch(pattern, printed) is not None


def test_every_example_prints_what_the_page_says(tmp_path: Path) -> None:
    compared = 0
    with contextlib.closing(Shell(tmp_path)) as shell:
        for command, promised in examples(PAGE.read_text()):
            printed = shell.run(command)
            assert matches(promised, printed), f"$ {command}\n{printed}\ninstead of\n{promised}"
            compared += 1
    print(f"{compared} examples of {PAGE.name} compared")
    assert compared >= 30


def test_every_command_is_on_the_page() -> None:
    page = PAGE.read_text()
    context = click.Context(main)
    for name in main.list_commands(context):
        assert f"cordwood {name} " in page or f"cordwood {name}\n" in page, name
        command = main.get_command(context, name)
        if isinstance(command, click.Group):
            for inner in command.list_commands(click.Context(command)):
                assert f"cordwood {name} {inner} " in page or f"cordwood {name} {inner}\n" in page, (
                    name,
                    inner,
                )
