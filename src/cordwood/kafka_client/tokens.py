"""Tokens of OAUTHBEARER from a file, which Java's client has too: an address that begins with ``file:``.

The file is read again whenever the client needs a token, so that another program may renew it.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from cordwood.errors import ConfigError
from cordwood.kafka_client.settings import ISSUER_URL

_TOKEN_BYTES_MAX = 64 << 10
_TOKEN = re.compile(r"[\w-]+\.([\w-]+)\.[\w-]*", re.ASCII)
#: For how long a token counts whose claims do not say when it expires.
_ASSUMED_SECONDS = 3600
#: What librdkafka calls when it needs a token: it gets the token and when it expires, in seconds.
TokenCall = Callable[[str], tuple[str, float, str, dict[str, str]]]


def token_file(settings: Mapping[str, Any]) -> str | None:
    """Return the path of the file that has the token, or None if the token does not come from a file."""
    url = str(settings.get(ISSUER_URL, "")).strip()
    return unquote(urlsplit(url).path) if url.lower().startswith("file:") else None


def read_token(path: str) -> tuple[str, float]:
    """Return the token in the file at *path*, and the time when it expires, in seconds.

    Raises:
        ConfigError: If there is no JSON Web Token in it, or an expired one; never quotes the file.
    """
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(_TOKEN_BYTES_MAX).strip()
    except OSError as error:
        raise ConfigError(ISSUER_URL, f"{ISSUER_URL}: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    parts = _TOKEN.fullmatch(text)
    if parts is None:
        raise ConfigError(ISSUER_URL, f"{ISSUER_URL}: {path} has no JSON Web Token")
    expiry = _expiry(parts[1])
    if expiry <= time.time():
        raise ConfigError(ISSUER_URL, f"{ISSUER_URL}: the token in {path} expired")
    return text, expiry


def token_call(settings: Mapping[str, Any]) -> TokenCall:
    """Return the function that gives librdkafka the token of *settings*, which name a file."""
    path = token_file(settings)
    assert path is not None
    listed = str(settings.get("sasl.oauthbearer.extensions", ""))
    extensions = dict(each.split("=", 1) for each in listed.split(",") if "=" in each)

    def call(config: str) -> tuple[str, float, str, dict[str, str]]:
        token, expiry = read_token(path)
        return token, expiry, "", extensions

    return call


def _expiry(claims: str) -> float:
    """Return when the token of *claims* expires. The broker checks them; this only says when to renew."""
    try:
        found = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        return float(found["exp"])
    except (ValueError, TypeError, KeyError):
        return time.time() + _ASSUMED_SECONDS
