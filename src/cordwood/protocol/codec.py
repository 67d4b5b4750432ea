"""Encoders and decoders of messages, compiled from their declarations.

The declarations of :mod:`cordwood.protocol.schema` are compiled once for each used (class, version) to Python
source without a loop over fields and without a call per field: consecutive fields of fixed size, and the
length of the next field, are read by one ``struct`` call. Only our own declarations become part of the
source, never the content of a frame.
"""

from __future__ import annotations

from typing import Any

from cordwood.protocol.decoding import compile_decoder
from cordwood.protocol.encoding import compile_encoder
from cordwood.protocol.wire import Decode, Encode


class Compiled:
    """The codec of a declared message. Versions from *flexible_from* on have tags and compact lengths.

    A version is compiled at its first use and cached. Safe to use from any thread: two threads may compile
    the same version, and either function is valid.
    """

    def __init__(self, message: type[Any], flexible_from: int) -> None:
        self.message = message
        self.flexible_from = flexible_from
        self._decoders: dict[int, Decode] = {}
        self._encoders: dict[int, Encode] = {}

    def decoder(self, version: int) -> Decode:
        """Return the function that decodes *version*; bytes after the message are ignored."""
        if version not in self._decoders:
            self._decoders[version] = compile_decoder(self.message, version, version >= self.flexible_from)
        return self._decoders[version]

    def encoder(self, version: int) -> Encode:
        """Return the function that encodes *version* to a list of buffers; see `compile_encoder`.

        Fields that the version does not have are left out. The function raises ValueError, which names the
        field, for an invalid value.
        """
        if version not in self._encoders:
            self._encoders[version] = compile_encoder(self.message, version, version >= self.flexible_from)
        return self._encoders[version]
