"""The subject of a certificate is the text that Java makes of it, and wrong bytes are refused."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type as Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from support.authorities import named, signed

from cordwood.security import CertificateRefused, read_certificate

CN = NameOID.COMMON_NAME


def name_of(*attributes: tuple[x509.ObjectIdentifier, str], kind: Type | None = None) -> x509.Name:
    return x509.Name([x509.NameAttribute(number, text, _type=kind) for number, text in attributes])


# What Java's X500Principal.getName() returned for these names.
JAVA = [
    (named(C="US", O="Sun, Micro", OU="Java+Soft", CN="Duke"), r"CN=Duke,OU=Java\+Soft,O=Sun\, Micro,C=US"),
    (name_of((CN, " lead and trail  ")), "CN=\\ lead and trail\\ \\ "),
    (name_of((CN, '#a=b;<c>"\\#')), r"CN=\#a\=b\;\<c\>\"\\\#"),
    (name_of((CN, "Zoë Ж 日本")), "CN=Zoë Ж 日本"),
    (name_of((NameOID.EMAIL_ADDRESS, "a@b.c"), (CN, "x")), "CN=x,1.2.840.113549.1.9.1=#16056140622e63"),
    (
        name_of(
            (NameOID.SERIAL_NUMBER, "123"),
            (NameOID.STREET_ADDRESS, "s 1"),
            (NameOID.DOMAIN_COMPONENT, "example"),
            (NameOID.USER_ID, "u"),
        ),
        "UID=u,DC=example,STREET=s 1,2.5.4.5=#1303313233",
    ),
    (name_of((CN, "univ"), kind=Type.UniversalString), "CN=#1c10000000750000006e0000006900000076"),
    (name_of((CN, "ia5"), kind=Type.IA5String), "CN=ia5"),
    (name_of((CN, "   ")), "CN=\\ \\ \\ "),
    (name_of((CN, "\rx\r")), "CN=\\\rx\\\r"),
    (name_of((CN, "nul\0x")), r"CN=nul\00x"),
    (name_of((x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), "v")), "1.3.6.1.4.1.99999.1=#0c0176"),
    (
        x509.Name(
            [
                x509.RelativeDistinguishedName(
                    [x509.NameAttribute(CN, "a"), x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "b")]
                ),
                x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "o")]),
            ]
        ),
        "O=o,CN=a+OU=b",
    ),
]


@pytest.mark.parametrize(("name", "text"), JAVA)
def test_a_subject_is_the_text_that_java_makes_of_it(name: x509.Name, text: str) -> None:
    """An ACL for a client certificate names the principal as Kafka does."""
    made, _ = signed(name)
    read = read_certificate(made.public_bytes(Encoding.DER))
    assert read.subject == text
    assert read.not_after == int(made.not_valid_after_utc.timestamp())


DER = signed(named(O="Acme", CN="alice"))[0].public_bytes(Encoding.DER)


@given(st.integers(0, len(DER) - 1), st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(position: int, byte: int) -> None:
    changed = bytearray(DER)
    changed[position] = byte
    try:
        read_certificate(bytes(changed))
    except CertificateRefused:
        return


@pytest.mark.parametrize("size", range(0, len(DER), 7))
def test_a_truncated_certificate_is_refused(size: int) -> None:
    with pytest.raises(CertificateRefused):
        read_certificate(DER[:size])


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    """Two names must never become one by replacing what cannot be read."""
    with pytest.raises(CertificateRefused):
        read_certificate(DER.replace(b"alice", b"ali\xff\xfe"))
