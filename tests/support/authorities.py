"""Certificates for tests: made once, some of them wrong in one way each."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
FOR_BOTH = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)
HOSTS = ("localhost", "127.0.0.1", "::1")


@cache
def _authority(name: str) -> trustme.CA:
    return trustme.CA(organization_name=name)


def authority(name: str = "tests") -> trustme.CA:
    """Return the authority of that name."""
    return _authority(name)


@cache
def server_pem(name: str = "tests", hosts: tuple[str, ...] = HOSTS) -> str:
    """Return a server's key and certificates as one PEM text."""
    return pem_of(authority(name).issue_cert(*hosts))


def pem_of(issued: trustme.LeafCert) -> str:
    """Return key and certificates as one PEM text."""
    return bytes(issued.private_key_and_cert_chain_pem.bytes()).decode()


def ca_pem(name: str = "tests") -> str:
    """Return the certificate of an authority."""
    return bytes(authority(name).cert_pem.bytes()).decode()


def signed(
    subject: x509.Name,
    *,
    since: datetime.datetime = NOW - DAY,
    until: datetime.datetime = NOW + DAY,
    usages: Sequence[x509.ObjectIdentifier] = (
        ExtendedKeyUsageOID.CLIENT_AUTH,
        ExtendedKeyUsageOID.SERVER_AUTH,
    ),
    by: str | None = "tests",
) -> tuple[x509.Certificate, str]:
    """Return a certificate signed *by* an authority, or by itself, and a PEM text of its key and itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer, issuer_key = subject, key
    if by is not None:
        issuer = x509.load_pem_x509_certificate(ca_pem(by).encode()).subject
        issuer_key = _key_of(by)
    hosts = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(hosts, critical=False)
        .add_extension(x509.ExtendedKeyUsage(list(usages)), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made, (text + made.public_bytes(serialization.Encoding.PEM)).decode()


def _key_of(name: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(authority(name).private_key_pem.bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def named(**parts: str) -> x509.Name:
    """Return a name from its parts, most general first: ``named(O="Acme", CN="alice")``."""
    kinds = {
        "CN": NameOID.COMMON_NAME,
        "O": NameOID.ORGANIZATION_NAME,
        "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
        "C": NameOID.COUNTRY_NAME,
    }
    return x509.Name([x509.NameAttribute(kinds[kind], text) for kind, text in parts.items()])


def revocations(*revoked: x509.Certificate, by: str = "tests") -> str:
    """Return the revocation list of an authority."""
    builder = x509.CertificateRevocationListBuilder().last_update(NOW - DAY).next_update(NOW + DAY)
    builder = builder.issuer_name(x509.load_pem_x509_certificate(ca_pem(by).encode()).subject)
    for each in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(each.serial_number).revocation_date(NOW - DAY)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(_key_of(by), hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def client_context(directory: Path, identity: str | None = None, *, trusted: str = "tests") -> ssl.SSLContext:
    """Return a client's context that trusts an authority and, with *identity*, has a certificate itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ca_pem(trusted))
    if identity is not None:
        path = directory / "client.pem"
        path.write_text(identity)
        context.load_cert_chain(path)
    return context
