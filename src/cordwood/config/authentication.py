"""The settings of SASL, which each listener may have of its own."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from cordwood.config.kinds import LONG_MAX, SettingKind, integer, some_of
from cordwood.config.setting import declare

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class NameList(tuple[str, ...]):
    """A list of names, such as audiences; the text has commas between them."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> NameList:
        """Parse a comma-separated list. Raises ValueError for an empty name in it."""
        names = [part.strip() for part in text.split(",")] if text else []
        if not all(names):
            raise ValueError(f"an empty name in {text!r}")
        return cls(names)

    def __str__(self) -> str:
        return ",".join(self)


def _parse_key_address(text: str) -> str:
    url = urlsplit(text)
    if text and not (url.scheme == "https" and url.hostname) and not (url.scheme == "file" and url.path):
        raise ValueError(f"neither a file: nor an https: URL: {text!r}")
    return text


def _parse_word(text: str) -> str:
    if not text:
        raise ValueError("an empty name")
    return text


_TEXT = SettingKind(str, "text")
_WORD = SettingKind(_parse_word, "the name of a claim")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """How clients of a listener authenticate."""

    sasl_mechanisms: str = declare(
        "sasl.enabled.mechanisms",
        some_of(*MECHANISMS),
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "The mechanisms that clients of SASL_PLAINTEXT and SASL_SSL listeners may authenticate with.",
    )
    max_reauth_ms: int = declare(
        "connections.max.reauth.ms",
        integer(0, LONG_MAX, unit="milliseconds"),
        0,
        "A client that has not authenticated again for this long is disconnected at its next request; "
        "0 means never.",
    )
    jwks_address: str = declare(
        "sasl.oauthbearer.jwks.endpoint.url",
        SettingKind(_parse_key_address, "a file: or https: URL, or nothing"),
        "",
        "The JWK set with the public keys that sign the tokens of OAUTHBEARER. Requires cordwood[oauth].",
    )
    jwks_refresh_ms: int = declare(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        integer(1000, LONG_MAX, unit="milliseconds"),
        3_600_000,
        "The interval at which the JWK set is read again; also when a token names a key that it lacks.",
    )
    oauth_audiences: NameList = declare(  # noqa: RUF009 - a field, as every other one
        "sasl.oauthbearer.expected.audience",
        SettingKind(NameList.parse, "a comma-separated list of audiences, or nothing", "list"),
        NameList(),
        "The audiences of which a token must have one; if empty, tokens must have none.",
    )
    oauth_issuer: str = declare(
        "sasl.oauthbearer.expected.issuer",
        _TEXT,
        "",
        "The issuer that a token must have; if empty, any.",
    )
    oauth_clock_skew_s: int = declare(
        "sasl.oauthbearer.clock.skew.seconds",
        integer(0, 3600, unit="seconds"),
        30,
        "How far the clock of the issuer may deviate when the times in a token are checked.",
    )
    oauth_subject_claim: str = declare(
        "sasl.oauthbearer.sub.claim.name",
        _WORD,
        "sub",
        "The claim with the name of the principal.",
    )
    oauth_scope_claim: str = declare(
        "sasl.oauthbearer.scope.claim.name",
        _WORD,
        "scope",
        "The claim with the scopes of a token, which must be text if there are any.",
    )

    def enables(self, mechanism: str) -> bool:
        """Return whether clients may authenticate with *mechanism*."""
        return mechanism in self.sasl_mechanisms.split(",")
