"""A certificate authority for tests, and the certificates that it issues for servers."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def contexts(folder: Path, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return contexts for a server with this name and for a client that trusts its certificate."""
    trusted = issue(folder, {"server": host})
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    return server, ssl.create_default_context(cadata=trusted)


def issue(folder: Path, hosts: Mapping[str, str]) -> str:
    """Write NAME.pem and NAME.key for the host of each NAME, and the authority's ca.pem.

    Return the text of ca.pem.
    """
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
    ca = _certificate(ca_name, ca_name, ca_key, ca_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    ca = ca.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False
    )
    ca = ca.add_extension(_usage(signs=True), critical=True)  # Python 3.13 requires it
    encoding = serialization.Encoding.PEM
    for file, host in hosts.items():
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        own = _certificate(name, ca_name, key, ca_key).add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False
        )
        own = own.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        chain = own.sign(ca_key, hashes.SHA256()).public_bytes(encoding)
        (folder / f"{file}.pem").write_bytes(chain)
        (folder / f"{file}.key").write_bytes(
            key.private_bytes(
                encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    trusted = ca.sign(ca_key, hashes.SHA256()).public_bytes(encoding).decode()
    (folder / "ca.pem").write_text(trusted)
    return trusted


def _usage(*, signs: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    off = dict.fromkeys((*others, "crl_sign", "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, **off)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signed_by: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
