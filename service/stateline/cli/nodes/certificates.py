"""Make certificates by which nodes know each other: an own authority, and a certificate per node.

    <folder>/ca.pem, ca.key          the authority: its certificate, and the key that signs
    <folder>/<node>.pem, <node>.key  a node's certificate, issued to its name, and its key

All are PEM. Keys have no password and use the curve P-256. Only the owner can read the files (mode 0600).
"""

from __future__ import annotations

import ipaddress
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stateline_store.errors import ConfigurationError, InvalidArgumentError

_AUTHORITY_LASTS = timedelta(days=3650)
# Clocks differ: other machines must accept a new certificate at once.
_BACKDATED = timedelta(hours=1)


class KeyPair(NamedTuple):
    certificate: Path
    key: Path


def make_authority(folder: Path, now: datetime) -> bool:
    """Make the folder's authority, unless it exists. Returns whether it was made. Raises `ConfigurationError` if files
    cannot be written, or only one of the two exists."""
    files = authority_files(folder)
    there = [path for path in files if path.exists()]
    if len(there) == len(files):
        return False
    if there:
        (missing,) = set(files) - set(there)
        raise ConfigurationError(
            f"{there[0]} is there and {missing} is not: an authority has both. Bring it back, or make a new one in "
            "another directory, and certificates of all nodes by that."
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be made: {error.strerror}.") from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Stateline nodes")])
    signing = x509.KeyUsage(False, False, False, False, False, key_cert_sign=True, crl_sign=True,
                            encipher_only=False, decipher_only=False)  # fmt: skip
    builder = _begun(name, name, key.public_key(), now, now + _AUTHORITY_LASTS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    _write(files, builder.add_extension(signing, critical=True).sign(key, hashes.SHA256()), key)
    return True


def make_certificate(folder: Path, node: str, hosts: Sequence[str], now: datetime, lasts: timedelta) -> KeyPair:
    """Make a node's certificate, signed by the folder's authority. `hosts` are further names and addresses in it.
    Raises `ConfigurationError` if files exist or cannot be read or written, and `InvalidArgumentError` for an invalid
    name."""
    issuer, signer = _read_authority(authority_files(folder))
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node[:64])])  # the limit of X.520
    names = x509.SubjectAlternativeName([_name(each) for each in dict.fromkeys([node, *hosts])])
    until = _expiry(authority_files(folder), issuer, now, lasts)
    files = KeyPair(folder / f"{node}.pem", folder / f"{node}.key")
    _write(files, _signed(issuer, signer, name, names, key.public_key(), now, until), key)
    return files


def renew_certificate(folder: Path, node: str, now: datetime, lasts: timedelta, *, new_key: bool) -> datetime:
    """Sign a node's certificate again, for the same names. Returns when it expires, never later than the authority.

    The key stays unless `new_key`: then a single file changes, and certificate and key match at any moment. Files are
    replaced by renaming and keep owner and mode. Raises `ConfigurationError` if files cannot be read or written, if the
    authority has expired, or if another one has signed the certificate.
    """
    authority = authority_files(folder)
    issuer, signer = _read_authority(authority)
    files = KeyPair(folder / f"{node}.pem", folder / f"{node}.key")
    try:
        old = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        old.verify_directly_issued_by(issuer)
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        why = f"{files.certificate} cannot be read: {error.strerror}."
        raise ConfigurationError(f"{why} `stateline node certificate` makes a node's first one.") from error
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise ConfigurationError(
            f"{files.certificate} is not renewed: it is no certificate that {authority.certificate} has signed."
        ) from error
    until = _expiry(authority, issuer, now, lasts)
    public = old.public_key()
    if new_key:
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key()
        _replace(files.key, _pem(key))
    signed = _signed(issuer, signer, old.subject, names, public, now, until)
    _replace(files.certificate, signed.public_bytes(serialization.Encoding.PEM))
    return until


def _expiry(authority: KeyPair, issuer: x509.Certificate, now: datetime, lasts: timedelta) -> datetime:
    until = min(now + lasts, issuer.not_valid_after_utc)
    if until <= now:
        raise ConfigurationError(
            f"{authority.certificate} has expired at {until:%Y-%m-%d %H:%M} UTC, and what it signs with it. Make a new "
            "authority in another directory, and certificates of all nodes by that."
        )
    return until


def _signed(
    issuer: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
    name: x509.Name,
    names: x509.SubjectAlternativeName,
    public: CertificatePublicKeyTypes,
    now: datetime,
    until: datetime,
) -> x509.Certificate:
    used = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = _begun(name, issuer.subject, public, now, until).add_extension(names, critical=False)
    builder = builder.add_extension(used, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return builder.add_extension(identifier, critical=False).sign(signer, hashes.SHA256())


def authority_files(folder: Path) -> KeyPair:
    return KeyPair(folder / "ca.pem", folder / "ca.key")


def _begun(
    name: x509.Name, issuer: x509.Name, public: CertificatePublicKeyTypes, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _BACKDATED).not_valid_after(until)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _name(text: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{text!r} is no name that a certificate can have: {error}") from error


def _read_authority(files: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename} cannot be read: {error.strerror}. The authority signs with it: bring it to this folder, "
            "or run the command where it is."
        ) from error
    except (ValueError, TypeError) as error:  # TypeError: the key has a password
        raise ConfigurationError(f"{files.certificate} and {files.key} are no authority: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigurationError(f"{files.key} is not the key of {files.certificate}: an authority has both.")
    return certificate, key


def _write(files: KeyPair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    for path in files:
        if path.exists():
            raise _is_there(path)
    _create(files.key, _pem(key))
    _create(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _replace(path: Path, content: bytes) -> None:
    """Replace a file by renaming. Owner and mode stay; the mode of a new file is 0600."""
    temporary = None
    try:
        before = path.stat() if path.exists() else None
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if before is not None:
                os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ConfigurationError(f"{path} cannot be replaced: {error.strerror}.") from error


def _create(path: Path, content: bytes) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
    except FileExistsError as error:
        raise _is_there(path) from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from error


def _is_there(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path} is there already: move it away first, nothing is written over.")
