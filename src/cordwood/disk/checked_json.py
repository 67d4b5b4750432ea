"""Small metadata files: one line of JSON with a checksum, replaced as a whole."""

from __future__ import annotations

from typing import TypeVar

import google_crc32c
import msgspec

from cordwood.disk.files import Files, read_file, write_atomically
from cordwood.errors import MetadataDamaged

Body = TypeVar("Body", bound=msgspec.Struct)


class _SealedJson(msgspec.Struct, forbid_unknown_fields=True):
    """The form in the file: docs/formats/directory.md."""

    crc32c: str
    body: msgspec.Raw


# Created once at import: the first decoding of a type prepares it, which two threads must not do at once.
_DECODER = msgspec.json.Decoder(_SealedJson)


def encode_sealed(body: msgspec.Struct) -> bytes:
    """Return *body* as one line of JSON with a checksum."""
    encoded = msgspec.json.encode(body)
    crc = f"{google_crc32c.value(encoded):08x}"
    return msgspec.json.encode(_SealedJson(crc, msgspec.Raw(encoded)))


def decode_sealed(data: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    """Return the body, decoded by *decoder*. Create the decoder once, at import: see `_DECODER`.

    Raises:
        ValueError: If any bit of it is wrong. The text says what, as the rest of a sentence about the file.
    """
    try:
        sealed = _DECODER.decode(data)
        encoded = bytes(sealed.body)
        found = f"{google_crc32c.value(encoded):08x}"
        if sealed.crc32c != found:
            raise ValueError(f"checksum is {sealed.crc32c}, but its content has {found}")
        return decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be parsed: {error}") from None


def write_metadata(files: Files, path: str, body: msgspec.Struct) -> None:
    """Replace the file. Durable on return; after a crash it has either the old or the new content."""
    write_atomically(files, path, encode_sealed(body))


def read_metadata(files: Files, path: str, decoder: msgspec.json.Decoder[Body]) -> Body:
    """Return the content, decoded by *decoder*. Create the decoder once, at import: see `_DECODER`.

    Raises:
        MetadataDamaged: If the file is missing or any bit of it is wrong.
    """
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        raise MetadataDamaged(path, "is missing") from None
    try:
        return decode_sealed(data, decoder)
    except ValueError as error:
        raise MetadataDamaged(path, str(error)) from None
