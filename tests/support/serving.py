"""Servers to talk to, as processes of their own, and a client that says exactly what it is told."""

from __future__ import annotations

import itertools
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cordwood.protocol.apis import APIS, ApiKey, decode_response, encode_request
from support.patience import SECONDS_MAX


class ServerProcess:
    """``cordwood serve`` on a data directory. `port` stays the same over `restart`.

    *handles* are the soft and the hard limit of its file handles.
    """

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, str] | None = None,
        listen: str = "localhost:0",
        handles: tuple[int, int] | None = None,
    ) -> None:
        self.data = data
        self._handles = handles
        self._settings = dict(settings or {})
        self._listen = listen
        self.process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it accepts."""
        settings = [part for item in self._settings.items() for part in ("-X", "=".join(item))]
        command = [sys.executable, "-m", "cordwood.cli", "serve", "--data", str(self.data)]
        if self._handles is not None:
            soft, hard = self._handles
            command = ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh", *command]
        self.process = subprocess.Popen(
            [*command, "--listen", self._listen, *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("cordwood: ready on "):
            _, errors = self.process.communicate(timeout=SECONDS_MAX)
            raise AssertionError(f"the server did not start: {line}{errors}")
        self.bootstrap = line.split()[-1]
        host, _, port = self.bootstrap.rpartition(":")
        self.address = (host, int(port))
        self._listen = f"localhost:{port}"

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self._wait()

    def stop(self) -> int:
        """End it with SIGTERM and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def restart(self, *, kill: bool = False) -> None:
        """End it and start it again on the same directory and port."""
        if kill:
            self.kill()
        else:
            assert self.stop() == 0
        self.start()

    def _wait(self) -> int:
        _, self.errors = self.process.communicate(timeout=SECONDS_MAX)
        return self.process.returncode

    def rss_anon(self) -> int:
        """Return the bytes of anonymous memory it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024


@contextmanager
def serving(
    data: Path,
    settings: Mapping[str, str] | None = None,
    listen: str = "localhost:0",
    handles: tuple[int, int] | None = None,
) -> Iterator[ServerProcess]:
    """Run a server for as long as the context lasts."""
    server = ServerProcess(data, settings, listen, handles)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()


class RawClient:
    """One connection. Requests go out as they are given, and answers come back decoded."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        if isinstance(address, str):
            host, _, port = address.rpartition(":")
            address = (host, int(port))
        self.socket = socket.create_connection(address, timeout=SECONDS_MAX)
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def send(self, api_key: ApiKey, version: int, body: Any, client_id: str | None = "raw") -> int:
        """Send a request and return its correlation id, without waiting for an answer."""
        number = next(self._numbers)
        self.socket.sendall(b"".join(encode_request(api_key, version, number, client_id, body)))
        return number

    def receive(self, api_key: ApiKey, version: int) -> Any:
        """Return the next answer, which is one to such a request."""
        return decode_response(api_key, version, self.receive_frame()).body

    def ask(self, api_key: ApiKey, body: Any, version: int | None = None) -> Any:
        """Send a request, in the newest version unless told otherwise, and return its answer."""
        chosen = APIS[api_key].advertised.last if version is None else version
        number = self.send(api_key, chosen, body)
        response = decode_response(api_key, chosen, self.receive_frame())
        assert response.correlation_id == number
        return response.body

    def receive_frame(self) -> bytes:
        """Return the next frame without its length; b"" where the server hung up."""
        head = self._receive(4)
        return self._receive(struct.unpack(">i", head)[0]) if head else b""

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionError:
                piece = b""
            if not piece:
                assert not data, f"the server hung up after {len(data)} of {size} bytes"
                return b""
            data += piece
        return bytes(data)

    def is_closed(self) -> bool:
        """Wait for the server to hang up, which it must without sending anything more."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
