"""Functions that turn messages into bytes and back, compiled from their declarations.

The declarations of :mod:`cordwood.protocol.schema` are walked once for each (class, version) that is
used, and become Python source without a loop over fields and without a call for each of them: fields
of fixed size that follow one another, and the length of what comes next, are read by one ``struct``
call. What a frame holds never becomes part of that source, only our own declarations do.
"""

from __future__ import annotations

from typing import Any

from cordwood.protocol.decoding import compile_decoder
from cordwood.protocol.encoding import compile_encoder
from cordwood.protocol.wire import Decode, Encode


class Compiled:
    """The codec of a declared message. Versions from *flexible_from* on have tags and compact lengths.

    A version is compiled when it is first asked for, and kept. Safe to use from any thread: two that
    ask at once may both compile, and either function will do.
    """

    def __init__(self, message: type[Any], flexible_from: int) -> None:
        self.message = message
        self.flexible_from = flexible_from
        self._decoders: dict[int, Decode] = {}
        self._encoders: dict[int, Encode] = {}

    def decoder(self, version: int) -> Decode:
        """Return the function that reads *version*; the message has to end where the frame does."""
        if version not in self._decoders:
            self._decoders[version] = compile_decoder(self.message, version, version >= self.flexible_from)
        return self._decoders[version]

    def encoder(self, version: int) -> Encode:
        """Return the function that writes *version*, as a list of buffers; see `compile_encoder`.

        A field that the version does not have is left out, whatever it holds. The function raises
        ValueError, naming the field, for a value that its field cannot hold.
        """
        if version not in self._encoders:
            self._encoders[version] = compile_encoder(self.message, version, version >= self.flexible_from)
        return self._encoders[version]
