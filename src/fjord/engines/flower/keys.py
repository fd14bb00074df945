"""The certificate of a SuperLink and the keys of its nodes, in the formats that Flower reads."""

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

CURVE = ec.SECP384R1()  # Flower accepts NIST curves only
LIFETIME = timedelta(days=365)


def make_certificate(folder: Path, address: str) -> None:
    """Write server.key, and server.crt for `localhost` and this IP address; ca.crt is its copy.

    It is signed with its own key and is no CA: who trusts it trusts this server and no other.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    hosts = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ip_address(address))]
    )
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of devices differ
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(hosts, critical=False)
    )
    certificate = builder.sign(key, hashes.SHA384()).public_bytes(Encoding.PEM)
    (folder / "ca.crt").write_bytes(certificate)
    (folder / "server.crt").write_bytes(certificate)
    _write_private_key(folder / "server.key", key, PrivateFormat.PKCS8)


def make_node_key(path: Path) -> None:
    """Write a node's private key to `path`, and its public key, for registration, to `path`.pub."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(CURVE)
    _write_private_key(path, key, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def _write_private_key(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    # Created with its final mode: a file that is closed to others later can be read before.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))
