"""Requests of a test to its broker, over the wire, to which no fault applies."""

from __future__ import annotations

import socket
from typing import Any

from cordwood.errors import CordwoodError
from cordwood.protocol import ApiKey, ErrorCode, decode_response, encode_request
from cordwood.protocol.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

_SECONDS_MAX = 60.0
_CREATE_VERSION, _DELETE_VERSION = 4, 4


class BrokerRefused(CordwoodError):
    """The broker answered a request of the test with an error."""


def create_topic(address: str, client_id: str, name: str, partitions: int, config: dict[str, str]) -> None:
    """Create a topic.

    Raises:
        BrokerRefused: If it exists, or its name or a setting is not allowed.
    """
    settings = [CreatableTopicConfig(name=each, value=value) for each, value in config.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
    body = _ask(
        address, client_id, ApiKey.CREATE_TOPICS, _CREATE_VERSION, CreateTopicsRequest(topics=[topic])
    )
    (answer,) = body.topics
    if answer.error_code:
        reason = answer.error_message or ErrorCode(answer.error_code).name
        raise BrokerRefused(f"topic {name} was not created: {reason}")


def delete_topic(address: str, client_id: str, name: str) -> None:
    """Delete a topic, if it exists.

    Raises:
        BrokerRefused: If it cannot be deleted.
    """
    body = _ask(
        address, client_id, ApiKey.DELETE_TOPICS, _DELETE_VERSION, DeleteTopicsRequest(topic_names=[name])
    )
    (answer,) = body.responses
    if answer.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        raise BrokerRefused(f"topic {name} was not deleted: {ErrorCode(answer.error_code).name}")


def _ask(address: str, client_id: str, api_key: ApiKey, version: int, body: Any) -> Any:
    """Return the body of the response, in a connection of its own."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _SECONDS_MAX) as connection:
        connection.sendall(b"".join(map(bytes, encode_request(api_key, version, 0, client_id, body))))
        size = int.from_bytes(_received(connection, 4), "big")
        return decode_response(api_key, version, _received(connection, size)).body


def _received(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise BrokerRefused("the broker closed the connection")
        data += more
    return bytes(data)
