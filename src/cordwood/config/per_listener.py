"""The settings that each listener may have of its own, as ``listener.name.<name>.<setting>``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from cordwood.config.authentication import SaslConfig
from cordwood.config.kinds import SettingKind, one_of, parse_path, some_of
from cordwood.config.setting import NO_SECRET, Secret, Setting, check_values, declare, declared_in

ClientAuth = Literal["none", "requested", "required"]
PREFIX = "listener.name."
#: The name under which the metrics have settings as listeners do.
METRICS = "METRICS"

_PEM = one_of("PEM")
_JAVA_STORES = one_of("PEM", "JKS", "PKCS12")
_PEM_TEXT = SettingKind(str, "text in PEM format")
_SECRET = SettingKind(Secret, "a secret")
_TEXT = SettingKind(str, "text")


def _parse_file(text: str) -> str:
    return parse_path(text) if text else ""


class CipherSuites(tuple[str, ...]):
    """Names of cipher suites; none means the defaults."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> CipherSuites:
        """Parse a comma-separated list. Raises ValueError for an empty name in it."""
        names = [part.strip() for part in text.split(",")] if text else []
        if not all(names):
            raise ValueError(f"an empty name in {text!r}")
        return cls(names)

    def __str__(self) -> str:
        return ",".join(self)


_SUITES = SettingKind(CipherSuites.parse, "a comma-separated list of cipher suites, or nothing", "list")
#: A path of a file, which may be empty.
FILE = SettingKind(_parse_file, "the path of a file, or nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig(SaslConfig):
    """The settings of one listener. Every instance holds valid values.

    ``explicit`` holds the names that were set, without the prefix of a listener.
    """

    keystore_type: str = declare(
        "ssl.keystore.type",
        _PEM,
        "PEM",
        "The format of the server's key and certificates. Stores of Java are not read: convert them to PEM.",
        kafka_kind=_JAVA_STORES,
    )
    keystore_location: str = declare(
        "ssl.keystore.location",
        FILE,
        "",
        "The PEM file with the server's private key and its certificate chain.",
    )
    certificate_chain: str = declare(
        "ssl.keystore.certificate.chain",
        _PEM_TEXT,
        "",
        "The server's certificate chain itself, instead of ssl.keystore.location.",
    )
    key: Secret = declare(  # noqa: RUF009 - a field, as every other one
        "ssl.keystore.key",
        _SECRET,
        NO_SECRET,
        "The server's private key itself, instead of ssl.keystore.location.",
    )
    key_password: Secret = declare(  # noqa: RUF009 - a field, as every other one
        "ssl.key.password",
        _SECRET,
        NO_SECRET,
        "The password of the private key, if it is encrypted.",
    )
    truststore_type: str = declare(
        "ssl.truststore.type",
        _PEM,
        "PEM",
        "The format of the certificates that clients' certificates are checked with.",
        kafka_kind=_JAVA_STORES,
    )
    truststore_location: str = declare(
        "ssl.truststore.location",
        FILE,
        "",
        "The PEM file with the authorities whose client certificates are accepted.",
    )
    truststore_certificates: str = declare(
        "ssl.truststore.certificates",
        _PEM_TEXT,
        "",
        "The authorities themselves, instead of ssl.truststore.location.",
    )
    revoked_location: str = declare(
        "cordwood.ssl.crl.location",
        FILE,
        "",
        "The PEM file with the revocation lists of these authorities; without a valid list of its authority, "
        "no client certificate is accepted.",
    )
    client_auth: ClientAuth = declare(  # noqa: RUF009 - a field, as every other one
        "ssl.client.auth",
        one_of(*get_args(ClientAuth)),
        "none",
        "Whether clients present a certificate: none asks for none, requested accepts clients without one as "
        "User:ANONYMOUS, required refuses them.",
    )
    enabled_protocols: str = declare(
        "ssl.enabled.protocols",
        some_of("TLSv1.2", "TLSv1.3"),
        "TLSv1.2,TLSv1.3",
        "The versions of TLS that are accepted.",
    )
    cipher_suites: CipherSuites = declare(  # noqa: RUF009 - a field, as every other one
        "ssl.cipher.suites",
        SettingKind(
            CipherSuites.parse, "a comma-separated list of names of cipher suites, or nothing", "list"
        ),
        CipherSuites(),
        "The cipher suites that are accepted; if empty, those with forward secrecy and authenticated "
        "encryption that OpenSSL considers secure.",
    )
    principal_mapping_rules: str = declare(
        "ssl.principal.mapping.rules",
        _TEXT,
        "DEFAULT",
        "Kafka's rules that make the name of a principal from the distinguished name of a certificate; "
        "DEFAULT takes the whole name.",
    )
    explicit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_values(self)


#: Every setting that a listener may have, by its name without a prefix.
LISTENER_SETTINGS: Mapping[str, Setting] = declared_in(ListenerConfig)


def listener_name(name: str, listener: str) -> str:
    """Return the full name of the setting *name* for one *listener*."""
    return f"{PREFIX}{listener.lower()}.{name}"


def split_name(name: str) -> tuple[str, str] | None:
    """Return the listener, in capitals, and the setting in *name*, or None if it is not of that form."""
    if not name.startswith(PREFIX):
        return None
    listener, dot, setting = name.removeprefix(PREFIX).partition(".")
    return (listener.upper(), setting) if listener and dot and setting else None
