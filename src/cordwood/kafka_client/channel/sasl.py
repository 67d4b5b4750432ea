"""The client's side of SASL as exchanges without a connection: messages out, answers in."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping
from typing import Any

from cordwood.errors import ConfigError, CordwoodError
from cordwood.kafka_client.settings import ISSUER_URL
from cordwood.kafka_client.tokens import read_token, token_file

_NONCE_BYTES = 24
#: RFC 5802 asks for 4096 at least. A server must not make the client compute for minutes.
_ITERATIONS_MIN, _ITERATIONS_MAX = 4096, 1 << 20
_ISSUER_SECONDS = 10
_ISSUED_BYTES_MAX = 64 << 10


SaslExchange = Generator[bytes, bytes, None]
"""Yields messages for the server and is sent its answers; ends when the server has proved what it must."""


def sasl_exchange(settings: Mapping[str, Any]) -> tuple[str, SaslExchange] | None:
    """Return the mechanism and the exchange that librdkafka's *settings* say, or None without SASL.

    Raises:
        ConfigError: If a setting is missing, or there is no such mechanism here.
        CordwoodError: If there is no token to be had. The exchange raises it if the server does not prove
            that it knows the user.
    """
    if not str(settings.get("security.protocol", "")).lower().startswith("sasl_"):
        return None
    mechanism = str(settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI")))
    match mechanism:
        case "PLAIN":
            user, password = _user(settings)
            return mechanism, _alone(f"\0{user}\0{password}".encode())
        case "SCRAM-SHA-256" | "SCRAM-SHA-512":
            hash_name = "sha256" if mechanism.endswith("256") else "sha512"
            return mechanism, scram(hash_name, *_user(settings), secrets.token_urlsafe(_NONCE_BYTES))
        case "OAUTHBEARER":
            return mechanism, _alone(_oauth(settings))
    raise ConfigError(
        "sasl.mechanism",
        f"sasl.mechanism={mechanism} is not possible for this command: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 "
        "and OAUTHBEARER are",
    )


def _user(settings: Mapping[str, Any]) -> tuple[str, str]:
    for name in ("sasl.username", "sasl.password"):
        if name not in settings:
            raise ConfigError(name, f"{name} is missing")
    return str(settings["sasl.username"]), str(settings["sasl.password"])


def _alone(message: bytes) -> SaslExchange:
    """Send one message: the server proves nothing."""
    yield message


def scram(hash_name: str, user: str, password: str, nonce: str) -> SaslExchange:
    """Follow RFC 5802 as Kafka speaks it: name and password are their UTF-8 bytes, and no channel is bound.

    Raises:
        CordwoodError: If the server's messages are not SCRAM's, or it does not know the user's keys.
    """

    def mac(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, hash_name)

    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    challenge = yield f"n,,{bare}".encode()
    both, salt, iterations = _challenge(challenge, nonce)
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    final = f"c=biws,r={both}"
    said = b",".join((bare.encode(), challenge, final.encode()))
    key = mac(salted, b"Client Key")
    signature = mac(hashlib.new(hash_name, key).digest(), said)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    proved = yield f"{final},p={base64.b64encode(proof).decode()}".encode()
    expected = b"v=" + base64.b64encode(mac(mac(salted, b"Server Key"), said))
    if not hmac.compare_digest(expected, proved.split(b",")[0]):
        raise CordwoodError("the broker did not prove that it knows the user")


def _challenge(challenge: bytes, nonce: str) -> tuple[str, bytes, int]:
    """Return the nonce of both sides, the salt and the iterations in the server's first message."""
    try:
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        both, iterations = fields["r"], int(fields["i"])
        salt = base64.b64decode(fields["s"], validate=True)
    except (ValueError, KeyError):
        raise CordwoodError("the broker's message is not one of SCRAM") from None
    if not both.startswith(nonce) or len(both) == len(nonce):
        raise CordwoodError("the broker's message belongs to another exchange of SCRAM")
    if not _ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
        raise CordwoodError(f"the broker asks for {iterations} iterations of SCRAM, which are refused")
    return both, salt, iterations


def _oauth(settings: Mapping[str, Any]) -> bytes:
    path = token_file(settings)
    token = _issued(settings) if path is None else read_token(path)[0]
    listed = str(settings.get("sasl.oauthbearer.extensions", ""))
    extensions = "".join(f"\x01{each}" for each in listed.split(",") if each)
    return f"n,,\x01auth=Bearer {token}{extensions}\x01\x01".encode()


def _issued(settings: Mapping[str, Any]) -> str:
    """Return a token from the issuer that the settings name, by the client's id and secret."""
    url = str(settings.get(ISSUER_URL, ""))
    names = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")
    missing = next((name for name in names if name not in settings), None)
    if not url.lower().startswith(("http://", "https://")) or missing is not None:
        name = missing or ISSUER_URL
        raise ConfigError(name, f"{name} is missing: a token is asked for with it")
    user = ":".join(urllib.parse.quote(str(settings[name]), safe="") for name in names)
    form = {"grant_type": "client_credentials"}
    if "sasl.oauthbearer.scope" in settings:
        form["scope"] = str(settings["sasl.oauthbearer.scope"])
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url,
        urllib.parse.urlencode(form).encode(),
        {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"},
    )
    try:
        with _opener().open(request, timeout=_ISSUER_SECONDS) as answer:
            return str(json.loads(answer.read(_ISSUED_BYTES_MAX))["access_token"])
    except urllib.error.HTTPError as error:
        error.close()
        raise CordwoodError(f"{url} issued no token: it answered {error.code}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CordwoodError(f"{url} issued no token: {type(error).__name__}") from None


def _opener() -> urllib.request.OpenerDirector:
    """Return what follows no redirection: its target must not get the client's secret."""
    found = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        found.add_handler(handler())
    return found
