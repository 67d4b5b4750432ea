"""The public keys of tokens come from the address that the operator trusts, and from nowhere else."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey
from support.authority import Authority
from support.clocks import ManualClock
from support.patience import SECONDS_MAX
from support.sasl import SaslClient

from cordwood import Broker
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages import SaslAuthenticateRequest
from cordwood.security import WebKeys
from cordwood.server.security import token_keys
from cordwood.server.security.token_keys import KeysUnreadable, TokenKeys, read_keys

KEYS = json.dumps({"keys": [ECKey.generate_key("P-256", {"kid": "key"}).as_dict(private=False)]}).encode()


@contextmanager
def provider(authority: Authority, answers: dict[str, tuple[int, str, bytes]]) -> Iterator[str]:
    """Serve *answers*, each a status, a location and a body by its path, over TLS; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, location, body = answers[self.path]
            self.send_response(status)
            self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, form: str, *args: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("provider").both)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"https://localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    authority = Authority(tmp_path / "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    monkeypatch.setenv("no_proxy", "*")
    return authority


def test_keys_come_from_the_trusted_address_and_from_no_other(trusted: Authority, tmp_path: Path) -> None:
    with provider(trusted, {"/keys": (200, "/", KEYS)}) as elsewhere:
        answers = {
            "/keys": (200, "/", KEYS),
            "/moved": (302, f"{elsewhere}/keys", b""),
            "/file": (302, "file:///etc/passwd", b""),
            "/large": (200, "/", KEYS + b" " * (1 << 20)),
            "/html": (200, "/", b"<html>"),
        }
        with provider(trusted, answers) as address:
            assert len(read_keys(f"{address}/keys")) == 1
            for path in ("/moved", "/file", "/large", "/html"):
                with pytest.raises(KeysUnreadable):
                    read_keys(address + path)
    with (
        provider(Authority(tmp_path / "stranger", "stranger"), answers) as untrusted,
        pytest.raises(KeysUnreadable, match="certificate verify failed"),
    ):
        read_keys(f"{untrusted}/keys")


def test_keys_of_before_are_used_while_the_address_does_not_answer(trusted: Authority) -> None:
    with provider(trusted, {"/keys": (200, "/", KEYS)}) as address:
        keys = TokenKeys(f"{address}/keys", ManualClock())
        assert len(keys.keys) == 0
        keys.reload()
        before = keys.keys
        assert len(before) == 1
    keys.reload_quietly()
    assert keys.keys is before


def test_nobody_else_waits_for_an_address_of_keys_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Strangers can have keys looked for with any token; passwords are checked meanwhile."""
    answering, reads = Event(), []

    def read_slowly(address: str) -> WebKeys:
        reads.append(address)
        assert answering.wait(SECONDS_MAX)
        raise KeysUnreadable("the address does not answer")

    monkeypatch.setattr(token_keys, "read_keys", read_slowly)
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": "https://localhost:1/keys",
    }
    key = ECKey.generate_key("P-256")
    token = jwt.encode({"alg": "ES256", "kid": "unknown"}, {"sub": "alice"}, key, algorithms=["ES256"])
    # Time stands still: those that waited for the address share its answer.
    clock = ManualClock()
    with Broker(users={"alice": "secret"}, config=settings, clock=clock) as broker, ExitStack() as stack:
        strangers = [stack.enter_context(SaslClient(broker.bootstrap)) for _ in range(8)]
        for each in strangers:
            each.shake("OAUTHBEARER")
            sent = SaslAuthenticateRequest(f"n,,\1auth=Bearer {token}\1\1".encode())
            each.send(ApiKey.SASL_AUTHENTICATE, 2, sent)
        for _ in range(5):
            with SaslClient(broker.bootstrap) as client:
                client.log_in("alice", "secret", "PLAIN")
        answering.set()
        for each in strangers:
            assert b"invalid_token" in each.receive_frame()
    assert len(reads) == 1
