"""One connection to a broker: TLS and SASL as the settings of the Kafka client say, then requests."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any

from cordwood.errors import CordwoodError, MalformedMessage
from cordwood.kafka_client.channel import sasl_exchange, tls_context
from cordwood.protocol import ApiKey, ErrorCode, decode_response, encode_request, supported_versions
from cordwood.protocol.messages import (
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    api_versions,
)

CLIENT_ID = "cordwood"
#: The largest answer that is read: one with very many transactional ids, or with one very large batch.
ANSWER_BYTES_MAX = 256 << 20
#: Memory for an answer grows with what has come of it, not with the length that it claims.
_PIECE_BYTES = 1 << 20
#: A session of SASL is renewed, by a new connection, when this part of it is over.
_SESSION_PART = 0.8
#: ApiVersions in a version that every broker answers.
_ANY_BROKER = 0


class BrokerConnection:
    """A connection to one broker. One thread; a request is answered before the next one is sent.

    After an OSError or a MalformedMessage it is of no further use.
    """

    def __init__(self, address: str, settings: Mapping[str, Any], seconds: float) -> None:
        """Connect to *address* and authenticate; *seconds* is the limit for an answer.

        *settings* are those of the Kafka client, without the address.

        Raises:
            CordwoodError: If the broker is not the one that was meant, or does not let the user in.
            OSError: If it does not answer.
        """
        self.address = address
        self._seconds = seconds
        self._number = 0
        self._versions: dict[int, tuple[int, int]] | None = None
        #: When the broker will end the session, by the monotonic clock.
        self._ends_at: float | None = None
        self._socket = _connected(address, settings, seconds)
        try:
            self._authenticate(settings)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.close()

    @property
    def is_expiring(self) -> bool:
        """Whether the session of SASL will soon end, so that a new connection is needed."""
        return self._ends_at is not None and time.monotonic() >= self._ends_at

    def ask(self, api_key: ApiKey, version: int, body: Any, more_seconds: float = 0.0) -> Any:
        """Return the body of the answer to a request; the limit for it is *more_seconds* later than usual.

        Raises:
            CordwoodError: If the answer is too large, or not an answer to the request.
            OSError: If the broker does not answer.
        """
        self._number += 1
        self._socket.settimeout(self._seconds + more_seconds)
        frame = encode_request(api_key, version, self._number, CLIENT_ID, body)
        self._socket.sendall(b"".join(map(bytes, frame)))
        size = int.from_bytes(self._received(4), "big")
        if size > ANSWER_BYTES_MAX:
            raise MalformedMessage(position=0, what=f"an answer of {self.address}", found=f"{size} bytes")
        response = decode_response(api_key, version, self._received(size))
        if response.correlation_id != self._number:
            found = f"the answer to request {response.correlation_id}"
            raise MalformedMessage(position=0, what=f"the answer to request {self._number}", found=found)
        return response.body

    def version(self, api_key: ApiKey, at_most: int | None = None) -> int:
        """Return the newest version of an API, *at_most* or less, that both sides know. -1 for none.

        Raises as `ask`.
        """
        if self._versions is None:
            answer: ApiVersionsResponse = self.ask(
                ApiKey.API_VERSIONS, _ANY_BROKER, api_versions.ApiVersionsRequest()
            )
            if answer.error_code:
                raise CordwoodError(
                    f"{self.address} does not say what it supports: {_named(answer.error_code)}"
                )
            self._versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        oldest, newest = self._versions.get(api_key, (0, -1))
        ours = supported_versions(api_key)
        best = min(newest, ours.last, newest if at_most is None else at_most)
        return best if best >= max(oldest, ours.first) else -1

    def _received(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(min(size - len(data), _PIECE_BYTES))
            if not more:
                raise ConnectionResetError("the connection was closed")
            data += more
        return data

    def _authenticate(self, settings: Mapping[str, Any]) -> None:
        found = sasl_exchange(settings)
        if found is None:
            return
        mechanism, exchange = found
        answer = self.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism))
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "nothing else"
            raise CordwoodError(f"{self.address} does not take {mechanism}, but {offered}")
        message = next(exchange)
        while True:
            answer = self.ask(ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(message))
            if answer.error_code:
                reason = answer.error_message or _named(answer.error_code)
                raise CordwoodError(f"{self.address} does not let the user in: {reason}")
            try:
                message = exchange.send(bytes(answer.auth_bytes))
            except StopIteration:
                break
        if answer.session_lifetime_ms > 0:
            self._ends_at = time.monotonic() + answer.session_lifetime_ms / 1000 * _SESSION_PART


def _connected(address: str, settings: Mapping[str, Any], seconds: float) -> socket.socket:
    context = tls_context(settings)
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        number = int(port)
    except ValueError:
        raise CordwoodError(f"{address} is not an address: expected HOST:PORT") from None
    plain = socket.create_connection((host, number), seconds)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise CordwoodError(f"{address} is not the broker that was meant: {error.verify_message}") from error
    except BaseException:
        plain.close()
        raise


def _named(code: int) -> str:
    """Return Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
