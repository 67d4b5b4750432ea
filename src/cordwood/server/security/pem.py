"""PEM: text with keys and certificates, as settings and files hold it."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
import textwrap
from collections.abc import Iterator

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def tidy(text: str) -> str:
    """Return *text* with line breaks where PEM needs them.

    A value in a properties file is one line, so its line breaks may have become spaces.
    """

    def block(match: re.Match[str]) -> str:
        name, body = match.groups()
        if ":" not in body:
            body = "\n" + "\n".join(textwrap.wrap("".join(body.split()), 64)) + "\n"
        return f"-----BEGIN {name}-----{body}-----END {name}-----\n"

    return _BLOCK.sub(block, text)


def certificates_in(text: str) -> list[bytes]:
    """Return the certificates in *text*, in DER. Raises ValueError if one is malformed."""
    found = [match[0] for match in _BLOCK.finditer(text) if match[1] == "CERTIFICATE"]
    return [ssl.PEM_cert_to_DER_cert(each) for each in found]


def has_key(text: str) -> bool:
    """Return whether *text* holds a private key."""
    return any(match[1].endswith("PRIVATE KEY") for match in _BLOCK.finditer(text))


def is_encrypted(text: str) -> bool:
    """Return whether the private key in *text* needs a password."""
    keys = [match for match in _BLOCK.finditer(text) if match[1].endswith("PRIVATE KEY")]
    return any("ENCRYPTED" in match[1] or "ENCRYPTED" in match[2] for match in keys)


@contextlib.contextmanager
def as_file(text: str) -> Iterator[str]:
    """Have *text* in a file that only this process can read, and return its path.

    Python's ssl reads keys and revocation lists from files only. On Linux the file is in memory.
    """
    with contextlib.ExitStack() as stack:
        path = None
        if hasattr(os, "memfd_create"):
            with contextlib.suppress(OSError):
                handle = os.memfd_create("cordwood-pem", os.MFD_CLOEXEC)
                stack.callback(os.close, handle)
                os.write(handle, text.encode())
                path = f"/proc/self/fd/{handle}"
        if path is None or not os.path.exists(path):
            file = stack.enter_context(tempfile.NamedTemporaryFile("w"))
            file.write(text)
            file.flush()
            path = file.name
        yield path
