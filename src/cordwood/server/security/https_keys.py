"""Keys from an https address. Imported when there is one: loading an HTTP client takes long."""

from __future__ import annotations

import ssl
import urllib.request
from typing import IO, Any

_TIMEOUT_SECONDS = 10


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the keys come from the address that the operator trusts."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """Return None, so that the redirect is an error."""


def download(address: str, bytes_max: int) -> bytes:
    """Return the first *bytes_max* bytes at *address*, an https URL.

    Raises:
        OSError: If there is no answer, or no success.
    """
    handlers = (urllib.request.HTTPSHandler(context=ssl.create_default_context()), _NoRedirects())
    with urllib.request.build_opener(*handlers).open(address, timeout=_TIMEOUT_SECONDS) as response:
        data: bytes = response.read(bytes_max)
    return data
