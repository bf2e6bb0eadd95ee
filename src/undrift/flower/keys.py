"""Certificates and node keys for a federation, as Flower's SuperLink and SuperNodes take them.

    ca.crt, ca.key          the authority that signs the SuperLink's certificate; every machine gets ca.crt
    server.pem, server.key  the SuperLink's certificate (TLS) and its private key
    nodes/0, nodes/0.pub    the key pair of a SuperNode, which is admitted by its public key; one pair a machine

Private keys can be read by their owner only. The folder appears as a whole or not at all.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from undrift.core import check
from undrift.core.extras import needs

with needs("flower"):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOSTS = ("localhost", "127.0.0.1")
_VALID = datetime.timedelta(days=365)
_MOST_NODES = 10_000
_README = Path(__file__).parent / "templates" / "keys.md.txt"


class _Pair(NamedTuple):
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def make(folder: str | Path, nodes: int = 3, hosts: Sequence[str] = HOSTS) -> Path:
    """Make keys for a SuperLink that is reached under `hosts`, and for so many SuperNodes; returns the folder."""
    path = Path(folder)
    check.integer("nodes", nodes, 1, _MOST_NODES)
    names = [_general_name(host) for host in hosts]
    if not names:
        raise ValueError("hosts must name at least one address of the SuperLink, such as 127.0.0.1")
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise ValueError(f"{str(folder)!r} exists already, and keys are never overwritten; choose another folder")
    draft = path.with_name(f".{path.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True, mode=0o700)
        _fill(draft, path.absolute(), nodes, hosts, names)
        os.replace(draft, path)
    except OSError as error:
        raise OSError(f"{str(folder)!r} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def _fill(draft: Path, home: Path, nodes: int, hosts: Sequence[str], names: list[x509.GeneralName]) -> None:
    authority = _authority()
    server = _signed(authority, hosts[0], names)
    for name, pair in (("ca", authority), ("server", server)):
        _write(draft / f"{name}.key", _private(pair.key, PrivateFormat.TraditionalOpenSSL), 0o600)
        suffix = "crt" if pair is authority else "pem"
        _write(draft / f"{name}.{suffix}", pair.certificate.public_bytes(Encoding.PEM), 0o644)
    (draft / "nodes").mkdir(mode=0o700)
    for number in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
        _write(draft / "nodes" / str(number), _private(key, PrivateFormat.OpenSSH), 0o600)
        _write(draft / "nodes" / f"{number}.pub", public, 0o644)
    words = {"home": str(home), "host": hosts[-1], "last": str(nodes - 1), "clients": str(nodes)}
    words["until"] = f"{server.certificate.not_valid_after_utc:%d %B %Y}"
    _write(draft / "README.md", Template(_README.read_text(encoding="utf-8")).substitute(words).encode(), 0o644)


def _authority() -> _Pair:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "undrift federation")])
    builder = _builder(name, name, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # certificates and their lists
    return _Pair(key, builder.add_extension(usage, critical=True).sign(key, hashes.SHA384()))


def _signed(authority: _Pair, host: str, names: list[x509.GeneralName]) -> _Pair:
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    builder = _builder(subject, authority.certificate.subject, key)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return _Pair(key, builder.add_extension(issuer, critical=False).sign(authority.key, hashes.SHA384()))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(now + _VALID)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    if not all(label and label.replace("-", "").isalnum() and label.isascii() for label in labels) or len(host) > 253:
        raise ValueError(f"a host is a name or an address, such as fl.example.org or 10.0.0.1, got {check.shown(host)}")
    return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> None:
    """With its mode from the start, so that a private key is never readable by others."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
