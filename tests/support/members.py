"""Servers with a bucket as processes: owners and standbys of one log, each with a directory and a port."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from support.patience import SECONDS_MAX, until

READY, STANDBY = "cordwood: ready on ", "cordwood: standby of "


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class Member:
    """``cordwood serve`` with a bucket on *data*. The port stays the same over restarts."""

    def __init__(self, data: Path, bucket: str, settings: Mapping[str, str]) -> None:
        self.data = data
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._bucket = bucket
        self._settings = settings
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.ready_at = 0.0

    def start(self, *, standby: bool) -> None:
        """Start it, and wait for nothing."""
        settings = [part for item in self._settings.items() for part in ("-X", "=".join(item))]
        command = [sys.executable, "-m", "cordwood.cli", "serve", "--data", str(self.data)]
        command += ["--listen", self.bootstrap, "--bucket", self._bucket, *settings]
        self.lines, self.errors = [], []
        self.process = process = subprocess.Popen(
            command + (["--standby"] if standby else []),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines, errors = self.lines, self.errors

        def read_lines() -> None:
            assert process.stdout is not None
            with process.stdout as stream:
                for line in stream:
                    if line.startswith(READY):
                        self.ready_at = time.monotonic()
                    lines.append(line)

        def read_errors() -> None:
            assert process.stderr is not None
            with process.stderr as stream:
                for line in stream:
                    errors.append(line)

        self._readers = [threading.Thread(target=each, daemon=True) for each in (read_lines, read_errors)]
        for each in self._readers:
            each.start()

    def says(self, beginning: str) -> None:
        """Wait until it printed a line that begins so."""

        def said() -> bool:
            assert self.process is not None
            if any(line.startswith(beginning) for line in self.lines):
                return True
            assert self.process.poll() is None, f"it ended: {self.lines} {self.errors}"
            return False

        until(said, f"a line {beginning!r} of {self.data.name}")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Return its exit status once it has ended."""
        assert self.process is not None
        status = self.process.wait(SECONDS_MAX)
        for each in self._readers:
            each.join()
        return status

    def kill(self) -> None:
        """End it as kill -9 does, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.wait()
