"""What clients that never authenticate cost the others: latency beside 2,000 of them and beside valid ones.

Visitors come at a steady rate from a process of their own. A client that has authenticated sends one record
after the other meanwhile. Its 99th percentile beside each kind of stranger is compared with that beside as
many clients that log in.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import Figure

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support import authorities
from support.sasl import SaslClient

from cordwood.formats.batch import encode_records
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages import CreatableTopic, CreateTopicsRequest, SaslAuthenticateRequest
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.protocol.messages.metadata import MetadataRequest
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic

VISITORS = 2000
VISITORS_PER_SECOND = 100
ROUNDS = 2
GOAL = 2.0
USER, PASSWORD = "alice", "secret"
PRODUCE_VERSION, CREATE_VERSION = 9, 5

_SERVER = """
import json, sys
import cordwood
settings, users = json.loads(sys.argv[2]), json.loads(sys.argv[3])
with cordwood.Broker(sys.argv[1], listen="SASL_SSL://localhost:0", config=settings, users=users) as broker:
    print(broker.bootstrap, flush=True)
    sys.stdin.read()
"""


def context_of(room: Path) -> ssl.SSLContext:
    """Return how a client trusts the server, whichever process asks."""
    return ssl.create_default_context(cafile=room / "trusted.pem")


class Visitor(SaslClient):
    """A connection that has not begun its TLS handshake."""

    def encrypt(self, room: Path) -> None:
        """Finish the TLS handshake."""
        self.socket = context_of(room).wrap_socket(self.socket, server_hostname="localhost")


def log_in(visitor: Visitor, room: Path) -> None:
    """Do as a valid client does."""
    visitor.encrypt(room)
    visitor.log_in(USER, PASSWORD)
    visitor.ask(ApiKey.API_VERSIONS, ApiVersionsRequest())


def say_nothing(visitor: Visitor, room: Path) -> None:
    """Keep the connection and send nothing."""


def begin_a_handshake(visitor: Visitor, room: Path) -> None:
    """Send the first message of a TLS handshake and nothing after it."""
    sent = ssl.MemoryBIO()
    client = context_of(room).wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    visitor.socket.sendall(sent.read())


def announce_a_giant_token(visitor: Visitor, room: Path) -> None:
    """Announce a token of 2 GiB and send the first kilobytes of it."""
    visitor.encrypt(room)
    visitor.shake("PLAIN", 0)
    visitor.socket.sendall(struct.pack(">i", 2**31 - 1) + bytes(8000))


def ask_before_authentication(visitor: Visitor, room: Path) -> None:
    """Ask for metadata at once."""
    visitor.encrypt(room)
    visitor.send(ApiKey.METADATA, 9, MetadataRequest(topics=None))


def guess_a_password(visitor: Visitor, room: Path) -> None:
    """Send a wrong password."""
    visitor.encrypt(room)
    visitor.shake("PLAIN")
    token = SaslAuthenticateRequest(f"\0{USER}\0guessed".encode())
    visitor.send(ApiKey.SASL_AUTHENTICATE, 2, token)


VALID = log_in
HOSTILE: tuple[Callable[[Visitor, Path], None], ...] = (
    say_nothing,
    begin_a_handshake,
    announce_a_giant_token,
    ask_before_authentication,
    guess_a_password,
)


def visit(bootstrap: str, room: Path, behave: Callable[[Visitor, Path], None]) -> None:
    """Connect again and again at the steady rate; every connection is kept until the last one was made."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with ExitStack() as stack:
        started = time.monotonic()
        for number in range(VISITORS):
            time.sleep(max(started + number / VISITORS_PER_SECOND - time.monotonic(), 0))
            visitor = stack.enter_context(Visitor(bootstrap))
            # The server may refuse a stranger at any moment.
            with contextlib.suppress(OSError, AssertionError):
                behave(visitor, room)


@contextmanager
def serving(room: Path) -> Iterator[str]:
    """Run a server with a listener that wants TLS and a password; yields its address."""
    keys, trusted = room / "server.pem", room / "trusted.pem"
    keys.write_text(authorities.server_pem())
    trusted.write_text(authorities.ca_pem())
    settings = {
        "ssl.keystore.location": str(keys),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        # By default a refused client is answered after a second, which would spread the work of refusals.
        "connection.failed.authentication.delay.ms": "1",
    }
    command = [sys.executable, "-c", _SERVER, str(room / "data"), json.dumps(settings)]
    with subprocess.Popen(
        [*command, json.dumps({USER: PASSWORD})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def percentile_99_ms(bootstrap: str, room: Path, behave: Callable[[Visitor, Path], None]) -> float:
    """Return the 99th percentile of one record after the other while visitors *behave*."""
    crowd = multiprocessing.get_context("spawn").Process(target=visit, args=(bootstrap, room, behave))
    batch = memoryview(encode_records([(None, os.urandom(100))], 1_700_000_000_000))
    topic = ProduceTopic("records", bytes(16), [ProducePartition(0, batch)])
    request = ProduceRequest(None, -1, 60_000, [topic])
    with Visitor(bootstrap) as client:
        client.encrypt(room)
        client.log_in(USER, PASSWORD)
        client.ask(
            ApiKey.CREATE_TOPICS,
            CreateTopicsRequest([CreatableTopic("records", 1, 1, [], [])], 60_000),
            CREATE_VERSION,
        )
        took: list[float] = []
        crowd.start()
        while crowd.is_alive():
            begun = time.perf_counter()
            (answer,) = client.ask(ApiKey.PRODUCE, request, PRODUCE_VERSION).topics
            took.append(time.perf_counter() - begun)
            assert answer.partitions[0].error_code == 0
    crowd.join()
    assert crowd.exitcode == 0, "the visitors failed"
    return sorted(took)[int(len(took) * 0.99)] * 1000


def run() -> list[Figure]:
    """Measure each kind of visitor in turn; the best round of each counts."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as directory:
        room = Path(directory)
        with serving(room) as bootstrap:
            for _ in range(ROUNDS):
                for behave in (VALID, *HOSTILE):
                    name = behave.__name__.replace("_", " ")
                    found = percentile_99_ms(bootstrap, room, behave)
                    best[name] = min(best.get(name, found), found)
    valid = best.pop(VALID.__name__.replace("_", " "))
    title = f"p99 of a record beside {VISITORS:,}"
    figures = [Figure(f"{title} clients that log in", valid, "ms")]
    for name, found in best.items():
        figures.append(Figure(f"{title} that {name}", found, "ms"))
        figures.append(Figure("… against those that log in", found / valid, "x", GOAL, at_most=True))
    return figures
