"""A certificate authority of one's own, a server certificate and a key for every node.

TLS needs a certificate whose names cover the address that nodes dial; node authentication needs an
ECDSA key a node, the public half of which is registered with the SuperLink. Both are made here, for
one deployment and for a short time: nothing of it is meant to be kept.

Whoever holds the private key of the authority can pose as the server, so that key is never written:
it signs one certificate and is forgotten. More nodes need only more node keys.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.deploy.errors import FlowerMissing
from fedshift.errors import InputError, OutputError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Where the files of one deployment's TLS and node authentication are.

    Parameters
    ----------
    ca, certificate, key
        The authority's certificate (nodes get it), the server's certificate and its private key.
    nodes
        Private key of every node, in OpenSSH's format; the public half is beside it, ".pub".
    until
        When the certificates end.
    """

    ca: Path
    certificate: Path
    key: Path
    nodes: Mapping[str, Path]
    until: datetime

    def public(self, name: str) -> Path:
        """The public half of a node's key, the file to register."""
        return self.nodes[name].with_name(f"{name}.pub")

    def __repr__(self) -> str:
        k = len(self.nodes)
        return f"Keys({k} node{'s' * (k != 1)}, valid until {self.until:%Y-%m-%d %H:%M} UTC)"


def make_keys(
    folder: Path,
    nodes: Iterable[str],
    *,
    addresses: Sequence[str] = ("127.0.0.1", "localhost"),
    days: float = 30.0,
) -> Keys:
    """Make an authority, a server certificate for `addresses` and a key for every node.

    Private keys are readable by their owner alone, in a folder that only the owner can enter.

    Parameters
    ----------
    folder
        Where the files go; made if it is not there. Files already there are not replaced.
    nodes
        Names of the nodes: letters, digits, dot, dash, underscore.
    addresses
        Host names and IP addresses under which nodes reach the server.
    days
        How long the certificates are valid.

    Raises
    ------
    InputError
        If a name cannot be that of a file, occurs twice, or no address or time is given.
    OutputError
        If the folder cannot be written to, or a key is already there.
    FlowerMissing
        If the `cryptography` package is not there; it comes with Flower.
    """
    names = checked_names(nodes)
    if not addresses:
        raise InputError("addresses: a server certificate needs at least one; got none")
    if not 0 < days <= 3650:
        raise InputError(f"days must be more than 0 and at most 3650; got {days!r}")
    _require_cryptography()
    _private_folder(Path(folder))
    folder = Path(folder).resolve()
    until = datetime.now(UTC) + timedelta(days=days)
    authority, ca = _authority(until)
    server = _new_key()
    certificate = _server_certificate(authority, ca, server, addresses, until)
    for name in names:
        write_node_key(folder, name)
    return Keys(
        ca=_write(folder / "ca.crt", _pem(ca), mode=0o644),
        certificate=_write(folder / "server.crt", _pem(certificate), mode=0o644),
        key=_write(folder / "server.key", _private(server, "TraditionalOpenSSL"), mode=0o600),
        nodes={name: folder / name for name in names},
        until=until,
    )


def write_node_key(folder: Path, name: str) -> Path:
    """Make one node's key as `ssh-keygen -t ecdsa -b 384` does; returns the private file."""
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization as form

    key = _new_key()
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    path = _write(Path(folder) / name, _private(key, "OpenSSH"), mode=0o600)
    _write(path.with_name(f"{name}.pub"), public + f" {name}\n".encode(), mode=0o644)
    return path


def checked_names(nodes: Iterable[str]) -> tuple[str, ...]:
    """Names that can be those of files and folders, each once."""
    names = tuple(nodes)
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InputError(
                "a client's name must begin with a letter or digit and have at most 64 letters, "
                f"digits, dots, dashes and underscores; got {name!r}"
            )
        if name.endswith(".pub") or name in ("ca.crt", "server.crt", "server.key"):
            raise InputError(f"a client cannot be called {name!r}: a key file has that name")
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise InputError(f"every client needs a name of its own; {double[0]!r} occurs twice")
    return names


def _authority(until: datetime) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    from cryptography import x509

    key = _new_key()
    name = _name("fedshift deployment authority")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, _sign(builder, key)


def _server_certificate(
    authority: EllipticCurvePrivateKey,
    ca: x509.Certificate,
    key: EllipticCurvePrivateKey,
    addresses: Sequence[str],
    until: datetime,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    builder = (
        _builder(_name("fedshift SuperLink"), ca.subject, key, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_san(a) for a in addresses]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
    )
    return _sign(builder, authority)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, until: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(minutes=5))  # clocks differ a little
        .not_valid_after(until)
    )


def _sign(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA384

    return builder.sign(key, SHA384())


def _san(address: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _name(common: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _private(key: EllipticCurvePrivateKey, layout: str) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return key.private_bytes(
        form.Encoding.PEM, getattr(form.PrivateFormat, layout), form.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return certificate.public_bytes(form.Encoding.PEM)


def _private_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise OutputError(
            f"cannot keep keys in {folder}: {error.strerror or error}; choose a folder of your own"
        ) from error


def _write(path: Path, content: bytes, *, mode: int) -> Path:
    """Whole or not at all, never readable by more than `mode` says, and never over another key."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, this fails where a file already is
    except FileExistsError as error:
        raise OutputError(f"{path} is already there; choose an empty folder for keys") from error
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise FlowerMissing("the package cryptography, which makes keys,") from None
