"""A connection that authenticates by SASL as it is told, right or wrong."""

from __future__ import annotations

import itertools
import struct
from typing import Any, Self

from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from support.asking import Asking
from support.scram import ScramClient

_NONCES = itertools.count(1)
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SaslClient(Asking):
    """A connection to a listener with SASL."""

    def __enter__(self) -> Self:
        return self

    def shake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        """Send a handshake and return the answer."""
        answer: SaslHandshakeResponse = self.ask(
            ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=mechanism), version
        )
        return answer

    def token(self, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
        """Send a token and return the answer."""
        answer: SaslAuthenticateResponse = self.ask(
            ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=token), version
        )
        return answer

    def raw_token(self, token: bytes) -> bytes:
        """Send a token without a request around it, and return the server's."""
        self.socket.sendall(struct.pack(">i", len(token)) + token)
        return self.receive_frame()

    def scram(self, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> SaslAuthenticateResponse:
        """Authenticate by SCRAM after the handshake; return the server's last answer."""
        client = ScramClient(HASHES[mechanism], name, password, f"nonce{next(_NONCES)}")
        first = self.token(client.first())
        assert first.error_code == 0, first.error_message
        last = self.token(client.final(first.auth_bytes))
        if not last.error_code:
            client.check(last.auth_bytes)
        return last

    def plain(self, name: str, password: str) -> SaslAuthenticateResponse:
        """Authenticate by PLAIN after the handshake."""
        return self.token(f"\0{name}\0{password}".encode())

    def log_in(self, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Any:
        """Authenticate, which must succeed; return the last answer."""
        assert self.shake(mechanism).error_code == 0
        answer = self.plain(name, password) if mechanism == "PLAIN" else self.scram(name, password, mechanism)
        assert answer.error_code == 0, answer.error_message
        return answer
