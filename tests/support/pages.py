"""Pages of the documentation, run as a reader would: each command in turn, in one directory."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from support.commands import environment
from support.patience import SECONDS_MAX

#: Ports that pages name; each is another one while a page is run.
PORTS = ("9092", "9100")


#: A block of code: its indentation, its language, its text. Blocks in lists are indented.
_BLOCK = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def fenced(page: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each block of code, without the indentation of a list."""
    for _, language, text in _BLOCK.findall(page):
        yield language, textwrap.dedent(text)


def examples(page: str) -> Iterator[tuple[str, str]]:
    """Yield each command of the page and what it is to print."""
    for block in (text for language, text in fenced(page) if language == "console"):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = example.partition("\n")
            yield command, output


def named_files(page: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each program and properties file whose first line has its name."""
    for block in (text for language, text in fenced(page) if language in ("py", "properties")):
        found = re.match(r"# ([\w-]+\.(?:py|properties))\n", block)
        if found is not None:
            yield found[1], block


class Shell:
    """Runs the commands of a page in one directory.

    What ends in ``&`` runs on until ``kill %1``, a second one until ``kill %2``. *ports* are ports that the
    page names and that are others in truth.
    """

    def __init__(self, directory: Path, ports: Mapping[str, str] | None = None) -> None:
        with ExitStack() as free:
            sockets = [free.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
            found = [str(one.getsockname()[1]) for one in sockets]
        self._ports = {**dict(zip(PORTS, found, strict=True)), **(ports or {})}
        self._directory = directory
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        self._environment = environment({"PATH": path, "LC_ALL": "C.UTF-8"})
        self._servers: dict[int, subprocess.Popen[str]] = {}

    def write(self, name: str, text: str) -> None:
        """Put a file where the commands run."""
        (self._directory / name).write_text(self._inward(text))

    def _inward(self, text: str) -> str:
        for named, port in self._ports.items():
            text = text.replace(named, port)
        return text

    def _outward(self, text: str) -> str:
        for named, port in self._ports.items():
            text = text.replace(port, named)
        return text

    def run(self, command: str) -> str:
        """Return what a command prints, on both streams."""
        command = self._inward(command)
        if killed := re.fullmatch(r"kill (-9 )?%(\d)", command):
            self._end(int(killed[2]), by_force=killed[1] is not None)
            return ""
        if exported := re.fullmatch(r"export (\w+)=(\S+)", command):
            self._environment[exported[1]] = exported[2]
            return ""
        if command.endswith("&"):
            arguments = ["bash", "-c", f"exec {command.removesuffix('&')}"]
            server = subprocess.Popen(
                arguments, cwd=self._directory, env=self._environment, stdout=subprocess.PIPE, text=True
            )
            self._servers[max(self._servers, default=0) + 1] = server
            assert server.stdout is not None
            return self._outward(server.stdout.readline())
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self._outward(done.stdout)

    def close(self) -> None:
        """End the servers that run."""
        for number in list(self._servers):
            self._end(number, by_force=False)

    def _end(self, number: int, *, by_force: bool) -> None:
        server = self._servers.pop(number)
        if by_force:
            server.kill()
        else:
            server.terminate()
        server.communicate(timeout=SECONDS_MAX)
        assert by_force or server.returncode == 0


def matches(promised: str, printed: str) -> bool:
    """Compare, with ``…`` standing for anything within a line, and for any lines where it is alone in one."""
    pattern = ""
    for line in promised.splitlines(keepends=True):
        within = r"[^\n]*".join(re.escape(part) for part in line.split("…"))
        pattern += r"(?:[^\n]*\n)+" if line == "…\n" else within
    return re.fullmatch(pattern, printed) is not None


def check_page(page: Path, directory: Path, ports: Mapping[str, str] | None = None) -> int:
    """Run everything on a page; return how many commands printed what it says. See `Shell` for *ports*."""
    text = page.read_text()
    shell = Shell(directory, ports)
    compared = 0
    try:
        for name, content in named_files(text):
            shell.write(name, content)
        for command, promised in examples(text):
            printed = shell.run(command)
            assert matches(promised, printed), f"$ {command}\n{printed}\ninstead of\n{promised}"
            compared += 1
    finally:
        shell.close()
    print(f"{compared} examples of {page.name} compared")
    return compared
