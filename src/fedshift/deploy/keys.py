"""A certificate authority, a server certificate, and a key for every node of a deployment.

A SuperLink is Flower's server process; a node is the process at a site (SuperNode). TLS needs a
certificate with the address that nodes connect to. Node authentication needs an ECDSA key per node,
whose public half is registered with the SuperLink. Certificate and keys are for one deployment; the
certificate expires after some days.

Whoever holds the private key of the authority can pose as the server. So this key is never written
to disk: it signs one certificate and is discarded. To add nodes later, make node keys for them with
`write_node_key`; the certificate stays the same.
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
    """Paths of the files for TLS and node authentication of one deployment.

    Parameters
    ----------
    ca, certificate, key
        The authority's certificate, which nodes need; the server's certificate; the server's
        private key.
    nodes
        File with the private key of every node, in OpenSSH's format. The public half of node NAME
        is in NAME.pub.
    until
        End of the certificates' validity.
    """

    ca: Path
    certificate: Path
    key: Path
    nodes: Mapping[str, Path]
    until: datetime

    def public(self, name: str) -> Path:
        """Return the file with the public half of a node's key, which the server registers."""
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

    Only the owner of the private keys can read them and enter their folder.

    Parameters
    ----------
    folder
        Folder for the files, created if missing. Existing files are not replaced.
    nodes
        Names of the nodes: letters, digits, dot, dash, underscore.
    addresses
        Host names and IP addresses at which nodes reach the server.
    days
        Days for which the certificates are valid.

    Raises
    ------
    InputError
        If a node's name is not a valid file name or occurs twice, if there is no address, or if
        `days` is not above 0 and at most 3650.
    OutputError
        If the folder cannot be written to, or already holds a key.
    FlowerMissing
        If the `cryptography` package, which comes with Flower, is missing.
    """
    names = check_names(nodes)
    if not addresses:
        raise InputError(
            "a server certificate needs at least one address; got none; add a host name"
        )
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
    """Make a node's key as `ssh-keygen -t ecdsa -b 384` does; return the private key's file."""
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization as form

    key = _new_key()
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    path = _write(Path(folder) / name, _private(key, "OpenSSH"), mode=0o600)
    _write(path.with_name(f"{name}.pub"), public + f" {name}\n".encode(), mode=0o644)
    return path


def check_names(nodes: Iterable[str]) -> tuple[str, ...]:
    """Check that the names are valid file names and all different; return them."""
    names = tuple(nodes)
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InputError(
                "a client's name must begin with a letter or digit and have at most 64 letters, "
                f"digits, dots, dashes and underscores; got {name!r}"
            )
        if name.endswith(".pub") or name in ("ca.crt", "server.crt", "server.key"):
            raise InputError(
                f"no client can be called {name!r}, as a key file has this name; rename the client"
            )
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise InputError(f"clients need different names; got {double[0]!r} twice; rename one")
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
            f"cannot store keys in {folder}: {error.strerror or error}; choose a folder of your own"
        ) from error


def _write(path: Path, content: bytes, *, mode: int) -> Path:
    """Write a file completely or not at all, with `mode`, and never over an existing key."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, this fails where a file already is
    except FileExistsError as error:
        raise OutputError(f"{path} already exists; choose an empty folder for keys") from error
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; choose another folder"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise FlowerMissing("the package cryptography, which keys need,") from None
