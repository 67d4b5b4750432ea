"""The keys and certificates of a listener: loaded, and loaded again when their files change."""

from __future__ import annotations

import os
import re
import ssl
from typing import NamedTuple, NoReturn

from cordwood.config import ListenerConfig
from cordwood.errors import InvalidSetting
from cordwood.host import Clock
from cordwood.security import (
    ANONYMOUS,
    CertificateRefused,
    Principal,
    PrincipalMapping,
    read_certificate,
)
from cordwood.server.security import pem

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_OPTIONS = ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
_VERIFYING = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_STRENGTH_BITS_MIN = 128
#: The largest file of certificates that is read.
_FILE_BYTES_MAX = 16 << 20


class _Sources(NamedTuple):
    """The PEM texts of one listener."""

    keys: str
    authorities: str
    revoked: str


class _LoadedCertificates(NamedTuple):
    """What was made of them, and the state of their files at that time."""

    context: ssl.SSLContext
    not_after: int
    stamps: tuple[tuple[int, int, int] | None, ...]


class Refreshed(NamedTuple):
    """What became of an attempt to load certificates again: whether they are used now, and a sentence."""

    used: bool
    sentence: str


class ListenerCertificates:
    """The keys, certificates and rules of one listener with TLS.

    `refresh` is for one thread at a time; everything else may be used by any thread meanwhile.
    """

    def __init__(self, listener: str, config: ListenerConfig, clock: Clock) -> None:
        """Load everything.

        Raises:
            InvalidSetting: If a file or a text is not what TLS needs; says which setting and why.
        """
        self.listener = listener
        self._config = config
        self._clock = clock
        try:
            self._mapping = PrincipalMapping(config.principal_mapping_rules)
        except ValueError as error:
            self._refuse("ssl.principal.mapping.rules", config.principal_mapping_rules, f"rules; {error}")
        self._loaded = self._load()
        # The state of files that could not be loaded: they are not tried again until they change.
        self._refused: object = None

    @property
    def context(self) -> ssl.SSLContext:
        """The context of new connections."""
        return self._loaded.context

    @property
    def not_after(self) -> int:
        """When the server's certificate expires, in seconds since 1970."""
        return self._loaded.not_after

    @property
    def expired(self) -> bool:
        """Whether the server's certificate has expired: clients refuse it."""
        return self.not_after * 1000 < self._clock.now_ms()

    def refresh(self, *, force: bool = False) -> Refreshed | None:
        """Load the files again if they have changed, or if *force*. Not on the loop.

        Return None if nothing changed. If the new certificates cannot be used, the old ones stay.
        """
        stamps = self._stamps()
        if not force and stamps in (self._loaded.stamps, self._refused):
            return None
        try:
            loaded = self._load()
            if loaded.not_after * 1000 < self._clock.now_ms():
                self._refuse(
                    "ssl.keystore.location", self._config.keystore_location, "one that has not expired"
                )
        except InvalidSetting as error:
            self._refused = stamps
            return Refreshed(False, f"listener {self.listener} keeps its certificates: {error}")
        self._loaded, self._refused = loaded, None
        return Refreshed(True, f"listener {self.listener} has loaded its certificates again")

    def identify(self, certificate: bytes | None) -> Principal:
        """Return the owner of a client certificate; without one, nobody in particular.

        Raises:
            CertificateRefused: If no rule gives the owner a name, or that of clients without a certificate.
        """
        if certificate is None:
            return ANONYMOUS
        owner = Principal("User", self._mapping.name_of(read_certificate(certificate).subject))
        if owner == ANONYMOUS:
            raise CertificateRefused(f"the rules give its owner the name {owner}, which is nobody's")
        return owner

    def check(self, certificate: bytes, resumed: bool) -> None:
        """Check a client certificate beyond what OpenSSL checks.

        Raises:
            CertificateRefused: If it has expired since the session that is *resumed* began.
        """
        if resumed and read_certificate(certificate).not_after * 1000 < self._clock.now_ms():
            raise CertificateRefused("its certificate is refused: certificate has expired")

    # --- loading ----------------------------------------------------------------------------------

    def _load(self) -> _LoadedCertificates:
        stamps, sources = self._stamps(), self._read()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= _OPTIONS
        self._set_versions(context)
        self._set_keys(context, sources.keys)
        self._set_authorities(context, sources)
        try:
            not_after = read_certificate(pem.certificates_in(sources.keys)[0]).not_after
        except (ValueError, CertificateRefused) as error:
            self._refuse(*self._keys_setting, f"a certificate; {error}")
        return _LoadedCertificates(context, not_after, stamps)

    def _read(self) -> _Sources:
        config = self._config
        if config.key.value or config.certificate_chain:
            if config.keystore_location:
                self._refuse(
                    "ssl.keystore.location", config.keystore_location, "no file beside ssl.keystore.key"
                )
            keys = pem.tidy(f"{config.key.value}\n{config.certificate_chain}")
        elif config.keystore_location:
            keys = self._file("ssl.keystore.location", config.keystore_location)
        else:
            expected = "the PEM file with the server's private key and its certificates"
            self._refuse("ssl.keystore.location", "", expected)
        authorities = pem.tidy(config.truststore_certificates)
        if not authorities and config.truststore_location:
            authorities = self._file("ssl.truststore.location", config.truststore_location)
        revoked = config.revoked_location
        return _Sources(keys, authorities, revoked and self._file("cordwood.ssl.crl.location", revoked))

    def _set_versions(self, context: ssl.SSLContext) -> None:
        versions = {_VERSIONS[name] for name in self._config.enabled_protocols.split(",")}
        asked = self._config.cipher_suites
        if asked:
            newer = {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.3"}
            older = [_openssl_name(name) for name in asked if name not in newer]
            if newer.isdisjoint(asked):
                versions.discard(ssl.TLSVersion.TLSv1_3)
            if not older:
                versions.discard(ssl.TLSVersion.TLSv1_2)
            if not versions:
                self._refuse("ssl.cipher.suites", str(asked), "a suite for one of ssl.enabled.protocols")
            if ssl.TLSVersion.TLSv1_3 in versions and not newer.issubset(asked):
                # Python cannot choose among them.
                expected = f"all suites of TLS 1.3 or none of them: {', '.join(sorted(newer))}"
                self._refuse("ssl.cipher.suites", str(asked), expected)
            if older and not _take_suites(context, older):
                self._refuse("ssl.cipher.suites", str(asked), "suites that OpenSSL considers secure")
        context.minimum_version, context.maximum_version = min(versions), max(versions)

    def _set_keys(self, context: ssl.SSLContext, keys: str) -> None:
        setting, value = self._keys_setting
        if not pem.has_key(keys) or not pem.certificates_in(keys):
            self._refuse(setting, value, "a private key and the certificates for it, in PEM format")
        password = self._config.key_password.value
        if pem.is_encrypted(keys) and not password:
            self._refuse("ssl.key.password", "", "the password of the private key, which is encrypted")
        try:
            with pem.as_file(keys) as path:
                # Without a password, OpenSSL would ask for one on the terminal.
                context.load_cert_chain(path, password=lambda: password)
        except (ssl.SSLError, OSError, ValueError) as error:
            expected = "a private key and the certificate for it"
            if pem.is_encrypted(keys):
                expected += ", and in ssl.key.password the password of the key"
            self._refuse(setting, value, f"{expected}; {_words(error)}")

    def _set_authorities(self, context: ssl.SSLContext, sources: _Sources) -> None:
        config = self._config
        if config.client_auth == "none":
            return
        name = "ssl.truststore.certificates" if config.truststore_certificates else "ssl.truststore.location"
        value = "" if config.truststore_certificates else config.truststore_location
        if not sources.authorities:
            self._refuse(name, value, "the authorities of client certificates, which ssl.client.auth needs")
        try:
            context.load_verify_locations(cadata=sources.authorities)
        except (ssl.SSLError, ValueError) as error:
            self._refuse(name, value, f"certificates in PEM format; {_words(error)}")
        context.verify_mode = _VERIFYING[config.client_auth]
        if sources.revoked:
            try:
                with pem.as_file(sources.revoked) as path:
                    context.load_verify_locations(path)
            except (ssl.SSLError, OSError) as error:
                expected = f"revocation lists in PEM format; {_words(error)}"
                self._refuse("cordwood.ssl.crl.location", config.revoked_location, expected)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF

    @property
    def _keys_setting(self) -> tuple[str, str]:
        """The setting that holds the keys, and what an error may say of its value."""
        config = self._config
        if config.key.value or config.certificate_chain:
            return "ssl.keystore.key", "[hidden]"
        return "ssl.keystore.location", config.keystore_location

    def _file(self, setting: str, path: str) -> str:
        try:
            with open(path, "rb") as file:
                return file.read(_FILE_BYTES_MAX).decode("ascii", "replace")
        except OSError as error:
            self._refuse(setting, path, f"a file that can be read; {error.strerror}")
        except ValueError as error:
            self._refuse(setting, path, f"a file; {error}")

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return the state of each file."""
        config = self._config
        paths = (config.keystore_location, config.truststore_location, config.revoked_location)
        return tuple(map(_stamp, filter(None, paths)))

    def _refuse(self, setting: str, value: str, expected: str) -> NoReturn:
        raise InvalidSetting(setting, value, f"{expected} (listener {self.listener})")


def _take_suites(context: ssl.SSLContext, names: list[str]) -> bool:
    """Return whether *context* takes cipher suites of TLS 1.2, all of them."""
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:
        return False
    # OpenSSL also takes suites without encryption or authentication if they are named.
    secure = {each["name"] for each in context.get_ciphers() if each["strength_bits"] >= _STRENGTH_BITS_MIN}
    return secure.issuperset(names) and not any(re.search("NULL|A(ECDH|DH)-", name) for name in names)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _words(error: Exception) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return str(reason or error).replace("_", " ").lower()


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a cipher suite of TLS 1.2, which may have its standard name."""
    exchange, split, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not split:
        return suite
    cipher = re.sub(r"^AES_(\d+)", r"AES\1", cipher).replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    name = f"{exchange}-{cipher}" if exchange != "RSA" else cipher
    return name.replace("_", "-")
