"""The bearer token that requests for metrics must have."""

from __future__ import annotations

import hmac
import logging

_BYTES_MAX = 4096
_LOGGER = logging.getLogger("cordwood.metrics")


class BearerToken:
    """The token in a file, which is read for each request: a new token needs no restart. In a thread."""

    def __init__(self, path: str) -> None:
        self._path = path

    def accepts(self, authorization: bytes) -> bool:
        """Return whether *authorization*, the value of that header, is this token.

        Nothing is accepted while the file is empty or cannot be read.
        """
        try:
            with open(self._path, "rb") as file:
                expected = file.read(_BYTES_MAX).strip()
        except OSError as error:
            _LOGGER.warning("cordwood.metrics.token.file cannot be read: %s", error)
            return False
        scheme, _, token = authorization.strip().partition(b" ")
        right = hmac.compare_digest(token.strip(), expected)
        return bool(expected) and right and scheme.lower() == b"bearer"
