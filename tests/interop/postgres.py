"""A PostgreSQL of its own for a test, with logical decoding."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interop.frameworks import free_port
from interop.toolbox import ToolMissing, program
from support.patience import SECONDS_MAX

USER, DATABASE = "shop", "postgres"
#: Where Debian has the programs that a server needs.
_DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda found: int(found.parent.name))


class Postgres:
    """A server that listens at `port` of 127.0.0.1 and trusts everybody there."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        data = directory / "data"
        run: list[str | Path] = [*_as_another(directory)]
        subprocess.run(
            [*run, _server_program("initdb"), "-D", data, "-U", USER, "-A", "trust", "-N"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": directory,
            "wal_level": "logical",
            "fsync": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (directory / "server.log").open("ab") as log:
            command = [*run, _server_program("postgres"), "-D", data, *options]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def run(self, sql: str) -> str:
        """Run statements, as soon as the server answers; return what they print."""
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", DATABASE]
        done = subprocess.run(
            [program("psql"), "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", *address],
            input=sql,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ready(self) -> bool:
        """Return whether the server answers."""
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", DATABASE]
        return subprocess.run([_server_program("pg_isready"), "-q", *address]).returncode == 0

    def stop(self) -> None:
        """End it, with the connections that it has."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(SECONDS_MAX)


def _server_program(name: str) -> str:
    for directory in reversed(_DEBIAN):
        if (directory / name).exists():
            return str(directory / name)
    return program(name)


def _as_another(directory: Path) -> list[str]:
    """Return what comes before a command of the server, which refuses to run as root."""
    if os.geteuid():
        return []
    shutil.chown(directory, "nobody")
    return [program("setpriv"), "--reuid=nobody", "--clear-groups", "--"]


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a server for as long as the context lasts.

    Raises:
        ToolMissing: If PostgreSQL is not installed.
    """
    if not _DEBIAN and shutil.which("initdb") is None:
        raise ToolMissing("PostgreSQL's server is not installed")
    # Not where tests have their files, which no other user may read.
    place = None if os.geteuid() else "/tmp"
    with tempfile.TemporaryDirectory(prefix="cordwood-postgres-", dir=place) as directory:
        server = Postgres(Path(directory))
        try:
            yield server
        finally:
            server.stop()
