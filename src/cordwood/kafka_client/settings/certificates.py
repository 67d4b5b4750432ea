"""Java's certificate stores for librdkafka: PEM is passed on, PKCS #12 is converted, JKS is refused.

The first bytes of a store say what it is. Stores are often named ``.jks`` whatever their type, and Java
creates PKCS #12 stores by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.errors import ConfigError
from cordwood.kafka_client.settings.names import KEYSTORE, STORES, TRUSTSTORE

#: The first bytes of stores that only Java can read: JKS and JCEKS.
_JAVAS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


def with_certificates(settings: Mapping[str, str], *, prefix: str = "") -> dict[str, str]:
    """Return *settings* with librdkafka's settings in place of Java's stores. Reads the named files.

    *prefix* stands before the names of settings in messages.

    Raises:
        ConfigError: If a store cannot be read here; says what to do.
    """
    found = {name: value for name, value in settings.items() if name not in STORES}
    if TRUSTSTORE in settings:
        found |= _trusted(prefix, settings[TRUSTSTORE], settings.get("ssl.truststore.password", ""))
    if KEYSTORE in settings:
        found |= _own(prefix, settings[KEYSTORE], settings.get("ssl.keystore.password"))
    return found


def _trusted(prefix: str, path: str, password: str) -> dict[str, str]:
    content = _read(prefix, TRUSTSTORE, path)
    if b"-----BEGIN" in content:
        return {"ssl.ca.location": path}
    instead = f"keytool -list -rfc -keystore {path} > ca.pem, and name that in {prefix}ssl.ca.location"
    if content.startswith(_JAVAS):
        raise ConfigError(prefix + TRUSTSTORE, f"{path} is a store that only Java reads: {instead}")
    certificates = _pem(_opened(prefix + "ssl.truststore", path, content, password, instead))
    if not certificates:
        raise ConfigError(prefix + TRUSTSTORE, f"there is no certificate in {path}")
    return {"ssl.ca.pem": certificates}


def _own(prefix: str, path: str, password: str | None) -> dict[str, str]:
    content = _read(prefix, KEYSTORE, path)
    if b"-----BEGIN" in content:
        return {"ssl.certificate.location": path, "ssl.key.location": path}
    if content.startswith(_JAVAS):
        raise ConfigError(
            prefix + KEYSTORE,
            f"{path} is a store that only Java reads: keytool -importkeystore -srckeystore {path} "
            f"-destkeystore keys.p12 -deststoretype PKCS12, and name that in {prefix}{KEYSTORE}",
        )
    if password is None:
        raise ConfigError(
            f"{prefix}ssl.keystore.password",
            f"{prefix}ssl.keystore.password is missing: it opens the PKCS #12 store {path}",
        )
    return {KEYSTORE: path, "ssl.keystore.password": password}


def own_pem(settings: Mapping[str, str]) -> str:
    """Return the certificates and the key in the PKCS #12 store of *settings* as PEM, which has no password.

    Raises:
        ConfigError: If it cannot be read here; says what to do.
    """
    path, password = settings[KEYSTORE], settings.get("ssl.keystore.password", "")
    instead = f"openssl pkcs12 -in {path} -out own.pem -nodes, and name that in ssl.certificate.location"
    opened = _opened("ssl.keystore", path, _read("", KEYSTORE, path), password, instead)
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    certificates = _pem(opened)
    if opened.key is None or not certificates:
        raise ConfigError(KEYSTORE, f"there is no key with a certificate in {path}")
    key: bytes = opened.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificates + key.decode()


def _opened(store: str, path: str, content: bytes, password: str, instead: str) -> Any:
    """Return the *content* of the PKCS #12 store at *path*; *store* begins the names of its settings."""
    name = f"{store}.location"
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        advice = f"install cordwood[signed], or {instead}"
        raise ConfigError(name, f"reading the PKCS #12 store {path} needs cryptography: {advice}") from None
    try:
        return pkcs12.load_pkcs12(content, password.encode())
    except ValueError:
        raise ConfigError(
            name, f"{path} is not a PEM file, and as a PKCS #12 store it does not open with {store}.password"
        ) from None


def _pem(opened: Any) -> str:
    """Return the certificates of a store, its own one first."""
    from cryptography.hazmat.primitives.serialization import Encoding

    found = [each.certificate for each in (opened.cert, *opened.additional_certs) if each is not None]
    return "".join(each.public_bytes(Encoding.PEM).decode() for each in found)


def _read(prefix: str, name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(16 << 20)
    except OSError as error:
        raise ConfigError(prefix + name, f"{prefix}{name}: {path} cannot be read: {error.strerror}") from None
