"""Requests that Kafka does not have: seal the active segment of a partition, truncate a partition.

No Kafka client can send a request of another kind, so these travel as the value of the setting OPERATION in
an IncrementalAlterConfigs request for a topic, as JSON. The setting is never stored. ``validate_only`` makes
a dry run of it. A broker that is not Cordwood refuses the setting as unknown.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from cordwood.errors import ConfigError

OPERATION = "cordwood.operation"
_Number = Annotated[int, msgspec.Meta(ge=0)]


class RollPartition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="roll"):
    """Seal the active segment of a partition."""

    partition: _Number


class TruncatePartition(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="truncate"
):
    """Drop the records of a partition at or above ``end_offset``; with ``force`` also below a checkpoint."""

    partition: _Number
    end_offset: _Number
    force: bool = False


Operation = RollPartition | TruncatePartition
_OPERATION: msgspec.json.Decoder[Operation] = msgspec.json.Decoder(Operation)


def encode_operation(operation: Operation) -> str:
    """Return the value of the setting OPERATION that asks for *operation*."""
    return msgspec.json.encode(operation).decode()


def decode_operation(text: str) -> Operation:
    """Return the operation that *text* asks for.

    Raises:
        ConfigError: If it asks for none.
    """
    try:
        return _OPERATION.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(OPERATION, f"{OPERATION} is not an operation: {error}") from None
