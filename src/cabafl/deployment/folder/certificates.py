"""Keys and certificates of a fleet."""

import datetime
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey
VALID = datetime.timedelta(days=3650)
_AUTHORITY = "cabafl fleet"
_BACKDATED = datetime.timedelta(days=1)  # boards without a battery boot with a clock that is behind


def make_authority() -> tuple[Key, x509.Certificate]:
    """A CA key and certificate that can sign servers but no further CAs."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_AUTHORITY, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return key, builder.sign(key, hashes.SHA256())


def make_server(authority: Key, names: Iterable[str], ips: Iterable[str]) -> tuple[Key, x509.Certificate]:
    """A server's key and certificate, signed by ``authority`` and valid for these DNS names and IP addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    hosts: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    hosts += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ips]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    builder = _builder("cabafl server", key)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    builder = builder.add_extension(signer, critical=False)
    return key, builder.sign(authority, hashes.SHA256())


def make_device_key() -> Key:
    """A device's key, on the curve Flower recommends (P-384)."""
    return ec.generate_private_key(ec.SECP384R1())


def write_key(path: Path, key: Key) -> None:
    """Writes a private key as PEM, with mode 0600 from the first byte on. Fails if the file exists."""
    _write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def write_device_key(private: Path, public: Path, key: Key) -> None:
    """Writes a key pair in OpenSSH format, the only one Flower reads."""
    _write_private(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """Writes a certificate as PEM."""
    path.write_bytes(certificate.public_bytes(Encoding.PEM))


def _write_private(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _builder(subject: str, key: Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
