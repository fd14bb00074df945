"""Certificates and node keys of a fleet, made on the spot, in the formats that Flower reads."""

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CURVE = ec.SECP384R1  # Flower accepts NIST curves only
LIFETIME = timedelta(days=365)


def make_certificates(folder: Path, hosts: list[str]) -> None:
    """Write ca.crt, server.crt and server.key: a server certificate for these names and addresses."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca_key, server_key = ec.generate_private_key(CURVE()), ec.generate_private_key(CURVE())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fjord fleet CA")])
    ca = (
        _unsigned(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    server = (
        _unsigned(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])]), ca_name, server_key
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_named(host) for host in hosts]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA384())
    )
    # The CA's own key is never written: nothing else can be signed in this fleet's name.
    (folder / "ca.crt").write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(Encoding.PEM))
    _write_private(folder / "server.key", server_key, PrivateFormat.PKCS8)


def make_node_key(path: Path) -> None:
    """Write a node's private key to `path` and its public key, which is registered, to `path`.pub."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(CURVE())
    _write_private(path, key, PrivateFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    )


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    # Opened with its final mode: written first and closed to others later, it could be read in between.
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of devices differ
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(
    digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
