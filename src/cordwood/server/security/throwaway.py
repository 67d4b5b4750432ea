"""A certificate for one broker in this process, from an authority that exists for it alone."""

from __future__ import annotations

import datetime
import ipaddress
from typing import NamedTuple

from cordwood.errors import ConfigError

_TERM = datetime.timedelta(days=30)
#: Clocks of clients on other machines may be behind.
_SLACK = datetime.timedelta(days=1)


class ThrowawayKeys(NamedTuple):
    """A server's private key and certificate, and the certificate of their authority, as PEM texts."""

    key: str
    certificate: str
    authority: str


def make_keys(now_ms: int) -> ThrowawayKeys:
    """Return new keys for this machine's loopback addresses. The authority's key is not kept.

    Raises:
        ConfigError: If the package cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError:
        reason = "making certificates needs the package cryptography: pip install 'cordwood[signed]'"
        raise ConfigError("tls", reason) from None

    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def begun(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(named(subject)).public_key(key.public_key())
        builder = builder.issuer_name(named("Cordwood, for one broker"))
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - _SLACK).not_valid_after(now + _TERM)

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    signing = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    authority = begun("Cordwood, for one broker", authority_key)
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    authority = authority.add_extension(signing, critical=True).add_extension(identifier, critical=False)
    hosts = [x509.DNSName("localhost"), *map(x509.IPAddress, map(ipaddress.ip_address, ("127.0.0.1", "::1")))]
    served = begun("localhost", key).add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    served = served.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    served = served.add_extension(issuer, critical=False)
    pem = serialization.Encoding.PEM
    return ThrowawayKeys(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode(),
        served.sign(authority_key, hashes.SHA256()).public_bytes(pem).decode(),
        authority.sign(authority_key, hashes.SHA256()).public_bytes(pem).decode(),
    )
