"""Keys, certificates and the revocation list of a fleet.

Every certificate is signed by the fleet's own authority. The common name of a client's certificate is its user name at
the broker.
"""

import datetime
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cabafl.errors import UserError

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
VALID = datetime.timedelta(days=3650)
AUTHORITY_VALID = datetime.timedelta(days=7300)  # of the authority and of its revocation list
_AUTHORITY = "cabafl fleet"
_BACKDATED = datetime.timedelta(days=1)  # boards without a battery boot with a clock that is behind
_SECOND = datetime.timedelta(seconds=1)


@dataclass(frozen=True)
class Authority:
    """The fleet's certificate authority. It can sign certificates, but no further authorities."""

    key: Key
    certificate: x509.Certificate

    @classmethod
    def make(cls) -> "Authority":
        """A new authority."""
        key = make_key()
        now = datetime.datetime.now(datetime.UTC)
        builder = _builder(_AUTHORITY, key.public_key(), now + AUTHORITY_VALID)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def load(cls, key: Path, certificate: Path) -> "Authority":
        """Reads an authority's files; raises `UserError` if the key is not there."""
        try:
            return cls(
                cast(Key, load_pem_private_key(key.read_bytes(), None)),
                load_certificate(certificate),
            )
        except (OSError, ValueError, TypeError):
            raise UserError(
                f"{key}: cannot be read; accepted: the fleet folder of the machine that has the authority's key"
            ) from None

    def sign_broker(self, key: PublicKey, names: Iterable[str], ips: Iterable[str]) -> x509.Certificate:
        """The broker's certificate, valid for these DNS names and IP addresses."""
        hosts: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        hosts += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ips]
        builder = self._leaf("broker", key, ExtendedKeyUsageOID.SERVER_AUTH)
        return self._sign(builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False))

    def sign_client(self, key: PublicKey, user: str, valid: datetime.timedelta = VALID) -> x509.Certificate:
        """The certificate with which ``user`` connects to the broker."""
        return self._sign(self._leaf(user, key, ExtendedKeyUsageOID.CLIENT_AUTH, valid))

    def revoke(self, serials: Iterable[int], before: x509.CertificateRevocationList | None) -> bytes:
        """A revocation list as PEM: the certificates on the list ``before``, and these.

        OpenSSL keeps the lists it has read and follows the one with the latest date, so each is dated after the last.
        """
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        listed: dict[int, datetime.datetime] = {}
        date, number = now - _BACKDATED, 1
        if before is not None:
            listed = {entry.serial_number: entry.revocation_date_utc for entry in before}
            date = max(date, before.last_update_utc + _SECOND)
            number = before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number + 1
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(date)
            .next_update(self.certificate.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(self._signer(), critical=False)
        )
        for serial, since in (dict.fromkeys(serials, now) | listed).items():
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def _leaf(
        self, subject: str, key: PublicKey, purpose: x509.ObjectIdentifier, valid: datetime.timedelta = VALID
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = _builder(subject, key, min(now + valid, self.certificate.not_valid_after_utc))
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        return builder.add_extension(self._signer(), critical=False)

    def _signer(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())

    def _sign(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        return builder.sign(self.key, hashes.SHA256())


def make_key() -> Key:
    """A private key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def write_key(path: Path, key: Key) -> None:
    """Writes a private key as PEM, with mode 0600 from the first byte on. Fails if the file exists."""
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM)


def load_certificate(path: Path) -> x509.Certificate:
    """Reads a certificate; raises `UserError` if there is none."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); accepted: a certificate as PEM") from None
    except ValueError:
        raise UserError(f"{path}: not a certificate; accepted: a certificate as PEM") from None


def load_revocations(path: Path) -> x509.CertificateRevocationList | None:
    """Reads a revocation list, or returns None if there is no such file."""
    try:
        return x509.load_pem_x509_crl(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{path}: not a revocation list; accepted: the file `cabafl deploy init` has made") from None


def public_key(certificate: x509.Certificate) -> PublicKey:
    """The key of a certificate, for its next one."""
    return cast(PublicKey, certificate.public_key())


def common_name(certificate: x509.Certificate) -> str:
    """The user name of a client's certificate."""
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def problem(path: Path, user: str | None = None, now: datetime.datetime | None = None) -> str | None:
    """What is wrong with a certificate, in one line: its dates against this machine's clock, and its user. None if
    nothing is. Raises `UserError` if it cannot be read."""
    certificate = load_certificate(path)
    now = now or datetime.datetime.now(datetime.UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        return (
            f"{path}: expired on {last:%Y-%m-%d}, the clock here says {now:%Y-%m-%d}; accepted: a certificate of "
            "`cabafl deploy init DIR --renew`, or a correct clock"
        )
    if now < first:
        return f"{path}: valid from {first:%Y-%m-%d}, the clock here says {now:%Y-%m-%d}; accepted: a correct clock"
    if user is not None and common_name(certificate) != user:
        return f"{path}: belongs to {common_name(certificate)}; accepted: the certificate of {user}"
    return None


def _builder(subject: str, key: PublicKey, until: datetime.datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.now(datetime.UTC) - _BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
