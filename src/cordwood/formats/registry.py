"""The formats there are, by the value of ``cordwood.format``."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.formats.format import Format
from cordwood.formats.frame import FrameFormat
from cordwood.formats.kimberlite import KimberliteFormat
from cordwood.formats.laminarmq import LaminarmqFormat
from cordwood.formats.native import BatchFormat
from cordwood.formats.rustlog import RustlogFormat

_EVERY: tuple[Format, ...] = (
    BatchFormat(),
    RustlogFormat(),
    KimberliteFormat(),
    LaminarmqFormat(),
    FrameFormat(),
)
FORMATS: Mapping[str, Format] = {format_.name: format_ for format_ in _EVERY}
