"""A broker that asks who its clients are, over TLS, and the ways in for its super user."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from joserfc import jwt
from joserfc.jwk import ECKey

from cordwood import Broker
from support.authority import Authority, Issued
from support.java_settings import OAUTH, PLAIN, SCRAM
from support.secure_clients import Login

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
#: Certificates as PEM files and as one of Java's stores.
CERTIFICATES = ("PEM", "PKCS12")
USERS = {"anna": "secret", "bela": "hidden"}
_ISSUER = "https://issuer.example"
_STORE_PASSWORD = "hidden-in-the-store"
#: The listeners: for users, for certificates, with the certificate of another host, and for tests to look on.
_LISTENERS = {"USERS": "SASL_SSL", "CERTIFICATES": "SSL", "ELSEWHERE": "SASL_SSL", "OPEN": "PLAINTEXT"}


def java_settings(login: Login, directory: Path) -> dict[str, str]:
    """Return the settings of Java's client for *login*; *directory* gets the file of a token."""
    found = {
        "security.protocol": login.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(login.ca),
    }
    if login.own is not None:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(login.own.both)}
    if login.mechanism is None:
        return found
    found["sasl.mechanism"] = login.mechanism
    if login.mechanism == "OAUTHBEARER":
        token = directory / "token"
        token.write_text(login.token)
        found["sasl.jaas.config"] = f"{OAUTH} required;"
        found["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
        return found
    module = PLAIN if login.mechanism == "PLAIN" else SCRAM
    found["sasl.jaas.config"] = f'{module} required username="{login.user}" password="{login.password}";'
    return found


def write_properties(path: Path, settings: Mapping[str, str]) -> Path:
    """Write *settings* to a file as Kafka's tools take it; return its path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


class Secured:
    """A broker on an empty *directory*, with more *users* and *settings*; anna may do everything.

    ``bootstrap`` is where a test sees everything without authentication.
    """

    def __init__(
        self,
        directory: Path,
        users: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.authority = Authority(directory / "authority")
        self.stranger = Authority(directory / "stranger", "stranger").certificate
        self.own: Issued = self.authority.issue("anna", client=True)
        self._key = ECKey.generate_key("P-256", {"kid": "key"})
        keys = directory / "keys.json"
        keys.write_text(json.dumps({"keys": [self._key.as_dict(private=False)]}))
        elsewhere = self.authority.issue("elsewhere", hosts=("elsewhere.example",))
        self._data = directory / "data"
        self._users = {**USERS, **(users or {})}
        self.config = {
            "listener.security.protocol.map": ",".join(map(":".join, _LISTENERS.items())),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": _ISSUER,
            "ssl.keystore.location": str(self.authority.issue("server").both),
            "listener.name.elsewhere.ssl.keystore.location": str(elsewhere.both),
            "listener.name.certificates.ssl.client.auth": "required",
            "listener.name.certificates.ssl.truststore.location": str(self.authority.certificate),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:anna;User:CN=anna;User:ANONYMOUS",
            "connection.failed.authentication.delay.ms": "1",
            **(settings or {}),
        }
        self._start(dict.fromkeys(_LISTENERS, "127.0.0.1:0"))

    def _start(self, addresses: Mapping[str, str]) -> None:
        listen = ",".join(f"{name}://{address}" for name, address in addresses.items())
        self.broker = Broker(self._data, listen=listen, config=self.config, users=self._users)
        self.addresses = self.broker.addresses
        self.bootstrap = self.addresses["OPEN"]

    def restart(self) -> None:
        """End it and start it again on the same data and ports."""
        self.broker.close()
        self._start(self.addresses)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broker.close()

    def token(self, key: ECKey | None = None) -> str:
        """Return a token of anna's, signed by the issuer or with another *key*."""
        now = int(time.time())
        claims = {"sub": "anna", "aud": "kafka", "iss": _ISSUER, "iat": now, "exp": now + 600}
        header = {"alg": "ES256", "kid": "key"}
        return jwt.encode(header, claims, key or self._key, algorithms=["ES256"])

    def forged_token(self) -> str:
        """Return a token of anna's that somebody else has signed."""
        return self.token(ECKey.generate_key("P-256", {"kid": "key"}))

    def login(self, mechanism: str | None) -> Login:
        """Return how anna connects: with a mechanism, or with a certificate."""
        if mechanism is None:
            return Login(self.authority.certificate, own=self.own)
        return Login(self.authority.certificate, mechanism, "anna", USERS["anna"], self.token())

    def address(self, way: str) -> str:
        """Return the address for a mechanism or a kind of certificates."""
        return self.addresses["CERTIFICATES" if way in CERTIFICATES else "USERS"]

    def java_settings(
        self, way: str, directory: Path, user: str = "anna", password: str | None = None
    ) -> dict[str, str]:
        """Return the settings of Java's client for a mechanism or a kind of certificates.

        *directory* gets the files that they name.
        """
        if way == "PKCS12":
            trusted, own = self._stores(directory)
            return {
                "security.protocol": "SSL",
                "ssl.truststore.location": str(trusted),
                "ssl.truststore.password": _STORE_PASSWORD,
                "ssl.keystore.location": str(own),
                "ssl.keystore.password": _STORE_PASSWORD,
            }
        login = self.login(None if way == "PEM" else way)
        return java_settings(
            login.but(user=user, password=USERS[user] if password is None else password), directory
        )

    def properties(self, way: str, directory: Path, password: str | None = None) -> Path:
        """Write the same settings to a file as Kafka's tools take it; return its path."""
        settings = self.java_settings(way, directory, password=password)
        return write_properties(directory / f"{way}.properties", settings)

    def _stores(self, directory: Path) -> tuple[Path, Path]:
        encryption = BestAvailableEncryption(_STORE_PASSWORD.encode())
        (authority,) = x509.load_pem_x509_certificates(self.authority.certificate.read_bytes())
        (certificate,) = x509.load_pem_x509_certificates(self.own.certificate.read_bytes())
        key = load_pem_private_key(self.own.key.read_bytes(), None)
        trusted, own = directory / "trusted.p12", directory / "own.p12"
        trusted.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [authority], encryption))
        own.write_bytes(
            pkcs12.serialize_key_and_certificates(b"anna", key, certificate, None, encryption)  # type: ignore[arg-type]
        )
        return trusted, own
