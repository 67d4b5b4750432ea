"""A raw client that has authenticated, over TLS or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.kafka_client.channel import sasl_exchange, tls_context
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from support.serving import RawClient


class AuthenticatedClient(RawClient):
    """One connection as whom the *settings* of librdkafka say."""

    def __init__(self, address: str, settings: Mapping[str, Any]) -> None:
        super().__init__(address)
        context = tls_context(settings)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=address.rpartition(":")[0])
        found = sasl_exchange(settings)
        if found is not None:
            mechanism, exchange = found
            answer = self.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism), 1)
            assert answer.error_code == 0, answer
            message = next(exchange)
            while True:
                answer = self.ask(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(message), 2)
                assert answer.error_code == 0, answer
                try:
                    message = exchange.send(answer.auth_bytes)
                except StopIteration:
                    break
