"""PEM as Java takes it in a properties file, where a value is one line. Pure."""

from __future__ import annotations

import re
import textwrap

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE = 64


def rewrapped(text: str) -> str:
    """Return the PEM blocks in *text* with line breaks, which OpenSSL needs and Java does not.

    A block with headers of its own, as an encrypted key of the old kind has, stays as it is, and so does a
    text without a block: the client then says that it is none.
    """
    found = []
    for label, body in _BLOCK.findall(text):
        if ":" in body:
            found.append(f"-----BEGIN {label}-----{body}-----END {label}-----\n")
        else:
            lines = "\n".join(textwrap.wrap("".join(body.split()), _LINE))
            found.append(f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n")
    return "".join(found) or text
