"""Bytes to records and back. Pure: no files, no clock."""

from cordwood.formats import batch, columns
from cordwood.formats.batch import (
    NO_PRODUCER_ID,
    BatchHeader,
    BatchOptions,
    Marker,
    encode_records,
    read_header,
)
from cordwood.formats.columns import binary_column, from_arrow
from cordwood.formats.compression import Compression, decompress
from cordwood.formats.format import (
    Beside,
    Encoded,
    Ending,
    Format,
    FrameSlot,
    FrameTable,
    ProducerStamp,
    ReceivedFrame,
    Row,
    StreamedFrame,
)
from cordwood.formats.native import BatchFormat
from cordwood.formats.receiving import (
    BatchTerms,
    CompressionChoice,
    check_allowed,
    check_keys,
    check_times,
    compression_in,
    recompressed,
    recompressed_if_sound,
)
from cordwood.formats.registry import BATCH, EVERY_FORMAT
from cordwood.formats.sidecar import ENTRY_SIZE, Sidecar
from cordwood.formats.zeros import only_zeros

__all__ = [
    "BATCH",
    "ENTRY_SIZE",
    "EVERY_FORMAT",
    "NO_PRODUCER_ID",
    "BatchFormat",
    "BatchHeader",
    "BatchOptions",
    "BatchTerms",
    "Beside",
    "Compression",
    "CompressionChoice",
    "Encoded",
    "Ending",
    "Format",
    "FrameSlot",
    "FrameTable",
    "Marker",
    "ProducerStamp",
    "ReceivedFrame",
    "Row",
    "Sidecar",
    "StreamedFrame",
    "batch",
    "binary_column",
    "check_allowed",
    "check_keys",
    "check_times",
    "columns",
    "compression_in",
    "decompress",
    "encode_records",
    "from_arrow",
    "only_zeros",
    "read_header",
    "recompressed",
    "recompressed_if_sound",
]
