"""The formats there are, by the value of ``cordwood.format``."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.formats.envelope import EnvelopeFormat
from cordwood.formats.format import Format
from cordwood.formats.frame import FrameFormat
from cordwood.formats.kimberlite import KimberliteFormat
from cordwood.formats.laminarmq import LaminarmqFormat
from cordwood.formats.native import BatchFormat
from cordwood.formats.rustlog import RustlogFormat

#: Whatever format a topic has, what is staged for it are batches.
BATCH = BatchFormat()
_EVERY: tuple[Format, ...] = (
    BATCH,
    RustlogFormat(),
    KimberliteFormat(),
    LaminarmqFormat(),
    FrameFormat(),
)
FORMATS: Mapping[str, Format] = {format_.name: format_ for format_ in _EVERY}
#: … and that of the shared log itself, which no other topic can have.
EVERY_FORMAT: Mapping[str, Format] = {**FORMATS, EnvelopeFormat.name: EnvelopeFormat()}
