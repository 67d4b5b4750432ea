"""OAUTHBEARER (RFC 7628): the client's message, and JSON web tokens as KIP-768 checks them.

Signatures are checked by `joserfc`, which only this module imports, when a key is read or a token is checked.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cordwood.security.steps import Challenge, Completed, Computation, Refused, Step

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, RSAKey

#: The signature algorithms that are accepted, and the type and the curve of their keys. All are asymmetric:
#: with HMAC, everybody who may check a token could make one.
ALGORITHMS = {
    **{f"{family}{bits}": ("RSA", None) for family in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
}
_RSA_BITS_MIN = 2048
_MESSAGE_BYTES_MAX = 128 << 10
_HEADER_CHARACTERS_MAX = 4096
_KEYS_MAX = 100
_MESSAGE = re.compile(
    rb"(?P<binding>[ny]|p=[A-Za-z0-9.-]+),(?:a=(?P<authzid>[^,\0\x01]+))?,"
    rb"\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*)\x01"
)
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+) *")
#: The answer to an invalid token, as JSON.
_INVALID_TOKEN = b'{"status":"invalid_token"}'


class TokenRefused(Exception):
    """A token is not acceptable. The text says why and has nothing of the token's signature."""


class TokenTerms(NamedTuple):
    """What a token must say."""

    audiences: tuple[str, ...] = ()
    issuer: str | None = None
    clock_skew_s: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"


class TokenSubject(NamedTuple):
    """The subject of a valid token, and the wall-clock time at which the token expires."""

    name: str
    expires_ms: int


class _TokenHeader(msgspec.Struct):
    """The fields of a token's header that decide how it is checked."""

    alg: str
    kid: str | None = None
    crit: msgspec.Raw | None = None


class _WebKey(NamedTuple):
    kid: str | None
    alg: str | None
    kind: str
    curve: str | None
    key: RSAKey | ECKey


class WebKeys:
    """The public keys of a JWK set that can check signatures."""

    def __init__(self, keys: Sequence[_WebKey]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def parse(cls, text: bytes) -> WebKeys:
        """Read a JWK set. Keys that cannot check an accepted algorithm are left out.

        Raises:
            ValueError: If it is not a JWK set, or has no key to use.
        """
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None
        listed = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(listed, list) or len(listed) > _KEYS_MAX:
            raise ValueError(f'not a JWK set, which is an object with at most {_KEYS_MAX} "keys"')
        keys = [key for each in listed if (key := _web_key(each)) is not None]
        if not keys:
            raise ValueError("the JWK set has no RSA key of at least 2048 bits and no EC key for signatures")
        return cls(keys)

    def candidates(self, alg: str, kid: str | None) -> list[_WebKey]:
        """Return the keys that a signature with *alg* and this key id may be of."""
        kind, curve = ALGORITHMS[alg]
        return [
            each
            for each in self._keys
            if each.kind == kind
            and curve in (None, each.curve)
            and each.alg in (None, alg)
            and (kid is None or each.kid == kid)
        ]


def _web_key(given: Any) -> _WebKey | None:
    """Return the key of a JWK, None if it is not one to check signatures with."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, RSAKey

    if not isinstance(given, dict) or given.get("use", "sig") != "sig":
        return None
    operations = given.get("key_ops", ["verify"])
    texts = [given.get(name) for name in ("kid", "alg")]
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    if any(text is not None and not isinstance(text, str) for text in texts):
        return None
    # Of a key pair only the public half is read.
    public = {name: given[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in given}
    if not all(isinstance(value, str) for value in public.values()):
        return None
    try:
        match public.get("kty"):
            case "RSA" if 8 * len(_from_base64url(public.get("n", ""))) >= _RSA_BITS_MIN:
                return _WebKey(texts[0], texts[1], "RSA", None, RSAKey.import_key(public))
            case "EC" if public.get("crv") in ("P-256", "P-384", "P-521"):
                return _WebKey(texts[0], texts[1], "EC", public["crv"], ECKey.import_key(public))
    except (JoseError, ValueError, KeyError, TypeError):
        return None
    return None


def check_token(token: str, keys: WebKeys, terms: TokenTerms, now_ms: int) -> TokenSubject:
    """Return the subject of *token*.

    Raises:
        UnknownKey: If no key can have signed it.
        TokenRefused: If it is malformed, was not signed by one of *keys*, is not valid at the wall-clock time
            *now_ms*, or contradicts *terms*.
    """
    header = _header_of(token)
    if header.alg not in ALGORITHMS:
        raise TokenRefused(f"the algorithm {header.alg[:20]!r} is not accepted")
    if header.crit is not None:
        raise TokenRefused("the token requires an extension")
    candidates = keys.candidates(header.alg, header.kid)
    if not candidates:
        raise UnknownKey(f"no key has the id {(header.kid or '')[:100]!r} and fits {header.alg}")
    payload = _payload_of(token, header.alg, candidates)
    try:
        claims = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        raise TokenRefused("the claims are not JSON") from None
    if not isinstance(claims, dict):
        raise TokenRefused("the claims are not an object")
    _check_parties(claims, terms)
    expires_s = _check_times(claims, terms.clock_skew_s, now_ms / 1000)
    name = claims.get(terms.subject_claim)
    if not isinstance(name, str) or not name.strip():
        raise TokenRefused(f"the claim {terms.subject_claim!r} is not a name")
    _check_scope(claims.get(terms.scope_claim), terms.scope_claim)
    return TokenSubject(name.strip(), int(expires_s * 1000))


class UnknownKey(TokenRefused):
    """A token is signed by a key that is not in the set: it may be newer than the set."""


def _header_of(token: str) -> _TokenHeader:
    encoded = token.partition(".")[0]
    if token.count(".") != 2 or len(encoded) > _HEADER_CHARACTERS_MAX:
        raise TokenRefused("not a signed token")
    try:
        return msgspec.json.decode(_from_base64url(encoded), type=_TokenHeader)
    except (ValueError, RecursionError):
        raise TokenRefused("the header of the token cannot be read") from None


def _payload_of(token: str, alg: str, candidates: Sequence[_WebKey]) -> bytes:
    """Return the payload of *token* if one of the *candidates* signed it."""
    from joserfc import jws
    from joserfc.errors import JoseError

    for candidate in candidates:
        try:
            return jws.deserialize_compact(token, candidate.key, algorithms=[alg]).payload
        except (JoseError, ValueError, TypeError, KeyError, RecursionError):
            continue
    raise TokenRefused("the signature is wrong")


def _check_parties(claims: dict[str, Any], terms: TokenTerms) -> None:
    if terms.issuer is not None and claims.get("iss") != terms.issuer:
        raise TokenRefused("the issuer is not the expected one")
    audience = claims.get("aud", [])
    named = [audience] if isinstance(audience, str) else audience
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise TokenRefused("the audience is malformed")
    # A token for somebody is never accepted by a broker that does not know whether it is that somebody.
    if (named or terms.audiences) and not set(named) & set(terms.audiences):
        raise TokenRefused("the audience is not an expected one")


def _check_times(claims: dict[str, Any], skew_s: int, now_s: float) -> float:
    """Check the times of a token, and return when it expires."""
    times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
    for name, value in times.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise TokenRefused(f"the claim {name!r} is not a time")
        if not 0 <= value < 1 << 40:
            raise TokenRefused(f"the claim {name!r} is not a time")
    missing = {"exp", "iat"} - times.keys()
    if missing:
        raise TokenRefused(f"the claim {min(missing)!r} is missing")
    if times["exp"] + skew_s <= now_s:
        raise TokenRefused("the token is expired")
    if times.get("nbf", 0) - skew_s > now_s:
        raise TokenRefused("the token is not valid yet")
    if times["iat"] - skew_s > now_s:
        raise TokenRefused("the token was issued in the future")
    if times["iat"] > times["exp"] or times.get("nbf", 0) > times["exp"]:
        raise TokenRefused("the times of the token contradict each other")
    return float(times["exp"])


def _check_scope(scope: object, name: str) -> None:
    scopes = [scope] if isinstance(scope, str) else scope
    if scopes is not None and not (
        isinstance(scopes, list) and all(isinstance(each, str) and each.strip() for each in scopes)
    ):
        raise TokenRefused(f"the claim {name!r} is malformed")


def _from_base64url(text: str) -> bytes:
    """Return the bytes of *text*. Raises ValueError if it is not base64 for URLs without padding."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except binascii.Error:
        raise ValueError("not base64 for URLs") from None


class OAuthExchange:
    """One OAUTHBEARER authentication: a token; if it is refused, the client acknowledges that first."""

    def __init__(
        self, check: Callable[[str], TokenSubject], reload: Callable[[], None] | None = None
    ) -> None:
        """Start an exchange.

        *check* returns the subject of a token, or raises `TokenRefused`. *reload* reads the keys again, which
        takes time; it is called for a token whose key is unknown, which is then checked again.
        """
        self._check = check
        self._reload = reload
        self._refused: Refused | None = None

    def respond(self, token: bytes) -> Step:
        """Return the answer to the next message of the client."""
        if self._refused is not None:
            return self._refused
        match = _MESSAGE.fullmatch(token) if len(token) <= _MESSAGE_BYTES_MAX else None
        if match is None or match["binding"].startswith(b"p"):
            return Refused("an OAUTHBEARER message is malformed")
        pairs = [pair.partition("=")[::2] for pair in match["pairs"].decode("ascii").split("\1")[:-1]]
        given = [value for key, value in pairs if key == "auth"]
        bearer = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        if bearer is None:
            return Refused("an OAUTHBEARER message has no bearer token")
        return self._answer(bearer[1], match["authzid"], self._reload)

    def _answer(self, token: str, authzid: bytes | None, reload: Callable[[], None] | None) -> Step:
        try:
            subject = self._check(token)
        except UnknownKey as error:
            if reload is None:
                return self._refuse(error)
            return Computation(partial(self._check_again, token, authzid, reload), waits=True)
        except TokenRefused as error:
            return self._refuse(error)
        if authzid not in (None, subject.name.encode()):
            return Refused("the authorization id is not the subject of the token", subject.name)
        return Completed(subject.name, b"", subject.expires_ms)

    def _check_again(
        self, token: str, authzid: bytes | None, reload: Callable[[], None]
    ) -> Challenge | Completed | Refused:
        reload()
        step = self._answer(token, authzid, None)
        assert not isinstance(step, Computation)
        return step

    def _refuse(self, error: TokenRefused) -> Step:
        """Tell the client that its token is refused; the exchange fails when it has acknowledged that."""
        self._refused = Refused(str(error))
        return Challenge(_INVALID_TOKEN, self._refused)
