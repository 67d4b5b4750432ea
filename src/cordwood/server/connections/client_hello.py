"""The first message of a TLS client, as far as it is read before any memory is spent on a handshake."""

from __future__ import annotations

#: The longest first message. Clients send a few hundred bytes; key shares and tickets may add some thousand.
HELLO_BYTES_MAX = 16 << 10
#: The most records that it may be cut into.
_RECORDS_MAX = 16
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_RECORD_HEADER, _MESSAGE_HEADER = 5, 4


class HelloRefused(Exception):
    """Bytes with which no TLS client begins; says why."""


def whole_hello(data: bytes | bytearray) -> bool:
    """Return whether *data* holds the whole first message of a TLS client.

    Raises:
        HelloRefused: If it is the beginning of something else, or too long.
    """
    message, at = bytearray(), 0
    for _ in range(_RECORDS_MAX):
        header = data[at : at + _RECORD_HEADER]
        if header and header[0] != _HANDSHAKE:
            raise HelloRefused("it does not speak TLS")
        if len(header) < _RECORD_HEADER:
            return False
        size = int.from_bytes(header[3:], "big")
        if header[1] != 3 or not 0 < size <= HELLO_BYTES_MAX:
            raise HelloRefused("it does not speak TLS, or its first message is too long")
        message += data[at + _RECORD_HEADER : at + _RECORD_HEADER + size]
        if message[0:1] not in (b"", bytes([_CLIENT_HELLO])):
            raise HelloRefused("it does not begin with a ClientHello")
        if len(message) >= _MESSAGE_HEADER:
            wanted = _MESSAGE_HEADER + int.from_bytes(message[1:_MESSAGE_HEADER], "big")
            if wanted > HELLO_BYTES_MAX:
                raise HelloRefused("its first message is too long")
            if len(message) >= wanted:
                return True
        at += _RECORD_HEADER + size
    raise HelloRefused("its first message is cut into too many records")
