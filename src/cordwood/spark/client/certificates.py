"""Java's certificate stores for librdkafka: PEM is passed on, PKCS #12 is converted, JKS is refused.

The first bytes of a store say what it is. Stores are often named ``.jks`` whatever their type, and Java
creates PKCS #12 stores by default.
"""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import ConfigError
from cordwood.spark.client.settings import KAFKA, KEYSTORE, STORES, TRUSTSTORE

#: The first bytes of stores that only Java can read: JKS and JCEKS.
_JAVAS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


def with_certificates(settings: Mapping[str, str]) -> dict[str, str]:
    """Return *settings* with librdkafka's settings in place of Java's stores. Reads the named files.

    Raises:
        ConfigError: If a store cannot be read here; says what to do.
    """
    found = {name: value for name, value in settings.items() if name not in STORES}
    if TRUSTSTORE in settings:
        found |= _trusted(settings[TRUSTSTORE], settings.get("ssl.truststore.password", ""))
    if KEYSTORE in settings:
        found |= _own(settings[KEYSTORE], settings.get("ssl.keystore.password"))
    return found


def _trusted(path: str, password: str) -> dict[str, str]:
    content = _read(TRUSTSTORE, path)
    if b"-----BEGIN" in content:
        return {"ssl.ca.location": path}
    instead = f"keytool -list -rfc -keystore {path} > ca.pem, and name that in {KAFKA}ssl.ca.location"
    if content.startswith(_JAVAS):
        raise ConfigError(KAFKA + TRUSTSTORE, f"{path} is a store that only Java reads: {instead}")
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
    except ImportError:
        raise ConfigError(
            KAFKA + TRUSTSTORE,
            f"reading the PKCS #12 store {path} needs cryptography: install cordwood[signed], or {instead}",
        ) from None
    try:
        opened = pkcs12.load_pkcs12(content, password.encode())
    except ValueError:
        raise ConfigError(
            KAFKA + TRUSTSTORE,
            f"{path} is not a PEM file, and as a PKCS #12 store it does not open with "
            f"{KAFKA}ssl.truststore.password",
        ) from None
    certificates = [each.certificate for each in (opened.cert, *opened.additional_certs) if each is not None]
    if not certificates:
        raise ConfigError(KAFKA + TRUSTSTORE, f"there is no certificate in {path}")
    return {"ssl.ca.pem": "".join(each.public_bytes(Encoding.PEM).decode() for each in certificates)}


def _own(path: str, password: str | None) -> dict[str, str]:
    content = _read(KEYSTORE, path)
    if b"-----BEGIN" in content:
        return {"ssl.certificate.location": path, "ssl.key.location": path}
    if content.startswith(_JAVAS):
        raise ConfigError(
            KAFKA + KEYSTORE,
            f"{path} is a store that only Java reads: keytool -importkeystore -srckeystore {path} "
            f"-destkeystore keys.p12 -deststoretype PKCS12, and name that in {KAFKA}{KEYSTORE}",
        )
    if password is None:
        raise ConfigError(
            f"{KAFKA}ssl.keystore.password",
            f"{KAFKA}ssl.keystore.password is missing: it opens the PKCS #12 store {path}",
        )
    return {KEYSTORE: path, "ssl.keystore.password": password}


def _read(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(16 << 20)
    except OSError as error:
        raise ConfigError(KAFKA + name, f"{KAFKA}{name}: {path} cannot be read: {error.strerror}") from None
