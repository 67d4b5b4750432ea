"""The sink: rows to frames, staged by tasks, published by the driver."""

from cordwood.spark.sink.address_carrier import ForeignCarrier
from cordwood.spark.sink.carriers import LOCKED_SECONDS, Carrier, open_carrier
from cordwood.spark.sink.encoding import Destination
from cordwood.spark.sink.sink import batch_writer, stream_writer

__all__ = [
    "LOCKED_SECONDS",
    "Carrier",
    "Destination",
    "ForeignCarrier",
    "batch_writer",
    "open_carrier",
    "stream_writer",
]
