"""Certificates for tests, made with the commands that the broker's README gives."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from fedmon.broker.configuration import template
from tests.support.requirements import require


def make_broker_certificate(folder: Path) -> None:
    """Fill ``certificates/`` of a broker's folder, by the README's own lines."""
    require(shutil.which("openssl"), "openssl is not on PATH")
    block = re.search(r"```sh certificates\n(.*?)```", template("README.md"), re.DOTALL)
    assert block is not None
    (folder / "certificates").mkdir(mode=0o700, exist_ok=True)
    _run(["sh", "-ec", block[1]], folder)
    # As strictly as Python does from 3.13 on.
    authority, certificate = "certificates/ca.crt", "certificates/broker.crt"
    _run(["openssl", "verify", "-x509_strict", "-CAfile", authority, certificate], folder)


def make_client_authority(folder: Path, name: str) -> None:
    """Make ``<name>-ca.crt`` and its key in a folder."""
    key, certificate = f"{name}-ca.key", f"{name}-ca.crt"
    subject = ["-subj", f"/CN={name} authority", "-days", "2"]
    usage = ["-addext", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign"]
    request = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", *subject, *usage]
    _run([*request, "-keyout", key, "-out", certificate], folder)


def make_client_certificate(folder: Path, authority: str, common_name: str) -> tuple[Path, Path]:
    """Make a certificate for a party; returns the paths of certificate and key."""
    stem = f"{authority}-{common_name}"
    key, request, certificate = (f"{stem}.{ending}" for ending in ("key", "csr", "crt"))
    subject = ["-subj", f"/CN={common_name}"]
    _run(["openssl", "req", "-newkey", "ed25519", "-nodes", *subject, "-keyout", key, "-out", request], folder)
    signer = ["-CA", f"{authority}-ca.crt", "-CAkey", f"{authority}-ca.key", "-CAcreateserial"]
    _run(["openssl", "x509", "-req", "-days", "2", "-in", request, *signer, "-out", certificate], folder)
    return folder / certificate, folder / key


def revoke(folder: Path, authority: str, certificate: Path) -> None:
    """Write ``<authority>.crl``, in which the authority revokes a certificate."""
    (folder / "index.txt").touch()
    lines = (
        "[ca]",
        "default_ca = one",
        "[one]",
        "database = index.txt",
        "default_md = default",
        "default_crl_days = 2",
    )
    (folder / "ca.conf").write_text("\n".join(lines))
    signer = ["-config", "ca.conf", "-keyfile", f"{authority}-ca.key", "-cert", f"{authority}-ca.crt"]
    _run(["openssl", "ca", *signer, "-revoke", str(certificate)], folder)
    _run(["openssl", "ca", *signer, "-gencrl", "-out", f"{authority}.crl"], folder)


def _run(command: list[str], folder: Path) -> None:
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
