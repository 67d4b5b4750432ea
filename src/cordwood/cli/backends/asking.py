"""Requests to a broker that confluent-kafka has no call for, each over a connection of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from cordwood.errors import CordwoodError
from cordwood.protocol import ApiKey
from cordwood.wire_client import BrokerConnection


def ask(settings: Mapping[str, Any], api_key: ApiKey, version: int, body: Any, seconds: float) -> Any:
    """Return the body of the broker's answer to a request.

    *settings* are those of the Kafka client, with the address, certificates and user.

    Raises:
        CordwoodError: If the broker does not answer or does not let the user in; names the address.
    """
    # The first of several is enough: any broker answers.
    address = str(settings["bootstrap.servers"]).split(",")[0].strip()
    try:
        with contextlib.closing(BrokerConnection(address, settings, seconds)) as connection:
            return connection.ask(api_key, version, body)
    except (OSError, ValueError) as error:
        raise CordwoodError(f"{address} did not answer: {error}") from error
