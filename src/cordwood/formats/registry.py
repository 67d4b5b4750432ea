"""All formats, by the value of ``cordwood.format``."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.formats.format import Format
from cordwood.formats.native import BatchFormat
from cordwood.formats.per_record import FrameFormat, KimberliteFormat, LaminarmqFormat, RustlogFormat
from cordwood.formats.shared import EnvelopeFormat

#: Staged records are batches, whatever format the topic has.
BATCH = BatchFormat()
_EVERY: tuple[Format, ...] = (
    BATCH,
    RustlogFormat(),
    KimberliteFormat(),
    LaminarmqFormat(),
    FrameFormat(),
)
FORMATS: Mapping[str, Format] = {format_.name: format_ for format_ in _EVERY}
#: The format of the shared log, which no other topic can have.
EVERY_FORMAT: Mapping[str, Format] = {**FORMATS, EnvelopeFormat.name: EnvelopeFormat()}
