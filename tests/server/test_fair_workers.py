"""Passwords are checked for each address in turn: a flood of guesses does not keep others out."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from support.sasl import SaslClient

from cordwood import Broker
from cordwood.protocol.apis import ApiKey, Request, encode_request
from cordwood.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from cordwood.server.security import AuthenticationResult, FairWorkers

GUESSES = 300


class Later:
    """Threads that work when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def run_for(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.calls.append((call, then))

    def go(self) -> None:
        """Run the call that waits for longest."""
        call, then = self.calls.pop(0)
        try:
            result = call()
        except Exception as error:
            result = error
        then(result)


class Asked:
    """A request from an address."""

    time = None

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.request = Request(ApiKey.SASL_AUTHENTICATE, 2, 1, None, None)
        self.failures: list[str] = []

    def attempt(self, call: Callable[[], None]) -> None:
        call()

    def fail(self, reason: str) -> None:
        self.failures.append(reason)


@pytest.mark.parametrize("flood", ["/10.0.0.1", "/2001:db8::1"])
def test_each_address_has_its_turn_however_many_calls_of_another_wait(flood: str) -> None:
    """Of IPv6 each network of 64 bits: one machine has all addresses of it."""
    threads = Later()
    done: list[str] = []
    workers = FairWorkers(threads, 2)

    def ask(peer: str, name: str) -> None:
        exchange: Any = Asked(peer)
        workers.run(exchange, lambda: name, done.append)

    for number in range(100):
        ask(flood if number % 2 or "." in flood else f"/2001:db8::{number + 2:x}", f"guess {number}")
    for number in range(3):
        ask("/10.0.0.2", f"login {number}")
    ask("/2001:db8:1::1", "another network")
    while threads.calls:
        assert len(threads.calls) <= 2
        threads.go()
    # Two are under way when the others come; then all three addresses take turns.
    assert done.index("login 0") <= 3
    assert done.index("another network") <= 4
    assert done.index("login 2") <= 9
    assert [name for name in done if name.startswith("guess")] == [f"guess {number}" for number in range(100)]
    assert len(done) == 104


def test_a_call_that_fails_ends_its_connection_and_nobody_elses() -> None:
    threads = Later()
    done: list[str] = []
    workers = FairWorkers(threads, 1)
    broken, other = Asked("/10.0.0.1"), Asked("/10.0.0.1")
    exchanges: list[Any] = [broken, other]
    workers.run(exchanges[0], lambda: 1 // 0, done.append)
    workers.run(exchanges[1], lambda: "fine", done.append)
    threads.go()
    threads.go()
    assert (broken.failures, other.failures) == (["the request could not be handled"], [])
    assert done == ["fine"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_valid_login_does_not_wait_for_the_guesses_of_another_address(mechanism: str) -> None:
    """The guesses are all there before it, and most of them are not checked when it is answered."""
    burst = b"".join(
        map(
            bytes,
            [
                *encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, None, SaslHandshakeRequest(mechanism="PLAIN")),
                *encode_request(
                    ApiKey.SASL_AUTHENTICATE, 2, 2, None, SaslAuthenticateRequest(auth_bytes=b"\0nobody\0x")
                ),
            ],
        )
    )
    config = {"cordwood.unauthenticated.connections.max": str(10 * GUESSES)}
    with Broker(users={"alice": "secret"}, config=config) as broker, ExitStack() as stack:
        assert broker._server is not None
        authentication = broker._server._authentication
        assert authentication is not None
        results: list[AuthenticationResult] = []
        authentication.observers.append(results.append)
        host, _, port = broker.bootstrap.rpartition(":")
        for _ in range(GUESSES):
            try:
                guess = socket.create_connection((host, int(port)), 60, source_address=("127.0.0.2", 0))
            except OSError as error:
                pytest.skip(f"only one loopback address: {error}")
            stack.enter_context(guess).sendall(burst)
        with SaslClient(broker.bootstrap) as client:
            client.log_in("alice", "secret", mechanism)
        before = [result.name for result in results].index("alice")
    print(f"{before} of {GUESSES} guesses were checked before the login")
    assert before < GUESSES // 2
