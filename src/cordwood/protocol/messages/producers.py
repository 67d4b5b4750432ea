"""InitProducerId: the id under which a producer numbers its batches."""

from __future__ import annotations

from cordwood.protocol.schema import boolean, int16, int32, int64, message, string


@message
class InitProducerIdRequest:
    """Give me an id, or bump the epoch of the one I have."""

    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


@message
class InitProducerIdResponse:
    """The id and its epoch."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
