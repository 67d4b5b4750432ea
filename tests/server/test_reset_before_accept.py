"""A client that is gone before the server knows its address is not served."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from threading import Event

import pytest
from support.asking import Asking
from support.commands import said
from support.patience import SECONDS_MAX

import cordwood
from cordwood import Broker
from cordwood.protocol.apis import ApiKey, encode_request
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.topics import DeleteTopicsRequest


@pytest.mark.parametrize("reset", [True, False])
def test_a_reset_does_not_take_a_client_past_the_rules_for_its_host(tmp_path: Path, reset: bool) -> None:
    """It takes the address of a connection, and leaves what was sent on it to be read."""
    with cordwood.open(tmp_path) as log:
        log.create_topic("orders")
    everyone = "--topic", "orders", "--operation", "All", "--data", tmp_path
    said("acl", "add", "--allow-principal", "User:*", *everyone)
    said("acl", "add", "--deny-principal", "User:*", "--deny-host", "127.0.0.1", *everyone)
    asked = DeleteTopicsRequest(topic_names=["orders"], timeout_ms=60_000)
    request = encode_request(ApiKey.DELETE_TOPICS, 1, 1, None, asked)
    blocked, going_on = Event(), Event()

    def block() -> None:
        blocked.set()
        assert going_on.wait(SECONDS_MAX)

    with Broker(tmp_path, config={"authorizer.class.name": "cordwood"}) as broker:
        assert broker._server is not None
        with Asking(broker.bootstrap) as client:
            assert client.topics("orders")[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            broker._server._loop.call_soon_threadsafe(block)
            assert blocked.wait(SECONDS_MAX)
            host, _, port = broker.bootstrap.rpartition(":")
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(b"".join(request))
                if reset:
                    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            going_on.set()
            # Connections are accepted in order, so the other one has been looked at by then.
            for _ in range(20):
                with Asking(broker.bootstrap) as another:
                    another.topics()
    with cordwood.open(tmp_path, read_only=True) as log:
        assert log.topics == ["orders"]
