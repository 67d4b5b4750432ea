"""Small metadata files: one line of JSON under a checksum, replaced whole."""

from __future__ import annotations

from typing import TypeVar

import google_crc32c
import msgspec

from cordwood.errors import MetadataDamaged
from cordwood.storage.files import Files, read_file, write_atomically

Body = TypeVar("Body", bound=msgspec.Struct)


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    """The form in the file: docs/formats/directory.md."""

    crc32c: str
    body: msgspec.Raw


# Made once, here: the first decoding of a type prepares it, and two threads must not do that at once.
_DECODER = msgspec.json.Decoder(_Sealed)


def write_metadata(files: Files, path: str, body: msgspec.Struct) -> None:
    """Replace the file. Durable on return; after a crash it is the old or the new one, whole."""
    encoded = msgspec.json.encode(body)
    crc = f"{google_crc32c.value(encoded):08x}"
    write_atomically(files, path, msgspec.json.encode(_Sealed(crc, msgspec.Raw(encoded))))


def read_metadata(files: Files, path: str, decoder: msgspec.json.Decoder[Body]) -> Body:
    """Return what was written, as *decoder* reads it. Make that once, at import: see `_DECODER`.

    Raises:
        MetadataDamaged: If the file is missing, or one bit of it is not as written.
    """
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        raise MetadataDamaged(path, "is missing") from None
    try:
        sealed = _DECODER.decode(data)
        encoded = bytes(sealed.body)
        found = f"{google_crc32c.value(encoded):08x}"
        if sealed.crc32c != found:
            raise MetadataDamaged(path, f"checksum is {sealed.crc32c}, but its content has {found}")
        return decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MetadataDamaged(path, f"cannot be parsed: {error}") from None
