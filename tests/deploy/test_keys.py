"""Keys: what TLS and OpenSSH themselves say of them."""

from __future__ import annotations

import shutil
import socket
import ssl
import stat
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedshift.deploy.keys import Keys, make_keys, write_node_key
from fedshift.errors import InputError, OutputError

pytest.importorskip("cryptography")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return make_keys(tmp_path / "keys", ["ward-1", "ward-2"])


def handshake(server: Keys, client_trusts: Path, name: str) -> str | None:
    """Version of TLS that a client and a server with these files agree on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        try:
            with context.wrap_socket(connection, server_side=True) as secure:
                secure.recv(1)
        except (ssl.SSLError, OSError):
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = ssl.create_default_context(cafile=str(client_trusts))
    try:
        with (
            socket.create_connection(listener.getsockname()) as plain,
            client.wrap_socket(plain, server_hostname=name) as secure,
        ):
            return secure.version()
    finally:
        thread.join()
        listener.close()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_client_that_has_the_authority_accepts_the_server(keys: Keys, name: str) -> None:
    assert handshake(keys, keys.ca, name) == "TLSv1.3"


def test_another_address_is_not_accepted(keys: Keys) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'evil\.example'"):
        handshake(keys, keys.ca, "evil.example")


def test_another_authority_is_not_accepted(keys: Keys, tmp_path: Path) -> None:
    other = make_keys(tmp_path / "other", ["ward-1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, other.ca, "localhost")


def test_the_certificates_are_strict_and_end_when_told(tmp_path: Path) -> None:
    from cryptography import x509

    keys = make_keys(tmp_path, ["a"], days=2, addresses=["10.0.0.7", "hub.example"])
    server = x509.load_pem_x509_certificate(keys.certificate.read_bytes())
    ca = x509.load_pem_x509_certificate(keys.ca.read_bytes())
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(n) for n in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    assert names.get_values_for_type(x509.DNSName) == ["hub.example"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    for certificate in (server, ca):
        left = certificate.not_valid_after_utc - datetime.now(UTC)
        assert timedelta(days=1.99) < left <= timedelta(days=2)
    assert f"{keys.until:%Y-%m-%d}" in repr(keys)


def test_private_files_are_for_the_owner_alone(keys: Keys) -> None:
    folder = keys.ca.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in (keys.key, *keys.nodes.values()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(p.name for p in folder.iterdir()) == [
        "ca.crt",
        "server.crt",
        "server.key",
        "ward-1",
        "ward-1.pub",
        "ward-2",
        "ward-2.pub",
    ]  # and nowhere the authority's own key


def test_node_keys_are_what_openssh_makes(keys: Keys) -> None:
    from cryptography.hazmat.primitives import serialization

    private = serialization.load_ssh_private_key(keys.nodes["ward-1"].read_bytes(), None)
    public = serialization.load_ssh_public_key(keys.public("ward-1").read_bytes())
    assert private.public_key() == public
    assert public.curve.name == "secp384r1"  # type: ignore[union-attr]


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")
def test_openssh_reads_them(keys: Keys) -> None:
    def ask(*arguments: str) -> str:
        return subprocess.run(
            ["ssh-keygen", *arguments], capture_output=True, text=True, check=True
        ).stdout

    assert ask("-l", "-f", str(keys.public("ward-2"))).startswith("384 SHA256:")
    made = ask("-y", "-f", str(keys.nodes["ward-2"])).split()[:2]
    assert made == keys.public("ward-2").read_text().split()[:2]


def test_no_key_is_written_over(keys: Keys) -> None:
    folder, before = keys.ca.parent, keys.nodes["ward-1"].read_bytes()
    with pytest.raises(OutputError, match="already exists"):
        write_node_key(folder, "ward-1")
    with pytest.raises(OutputError, match="already exists"):
        make_keys(folder, ["ward-1"])
    assert keys.nodes["ward-1"].read_bytes() == before
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "x" * 65, "é", "a.pub", "server.key", 3])
def test_a_name_must_be_that_of_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        make_keys(tmp_path, [name])
    assert not list(tmp_path.iterdir())


def test_other_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got 'a' twice"):
        make_keys(tmp_path, ["a", "b", "a"])
    with pytest.raises(InputError, match="days"):
        make_keys(tmp_path, ["a"], days=0)
    with pytest.raises(InputError, match="at least one address"):
        make_keys(tmp_path, ["a"], addresses=[])
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot store keys"):
        make_keys(tmp_path / "file", ["a"])
