"""The broker's address and our credentials; secrets are read from private files."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from fedmon.common.errors import SettingsError

DEFAULT_URL = "mqtt://localhost:1883"
PORTS = {"mqtt": 1883, "mqtts": 8883}
_SHAPE = "mqtt://[user@]host[:1883] or mqtts://[user@]host[:8883], with more hosts after commas"
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,255}")
_MAX_SECRET_BYTES = 16_384
_OTHERS = 0o077


class BrokerHost(msgspec.Struct, frozen=True, kw_only=True):
    """One address of the broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the broker; ``hosts`` are tried in turn."""

    hosts: Annotated[tuple[BrokerHost, ...], Meta(min_length=1)]
    tls: bool = False
    ca_file: Annotated[
        Path | None, Meta(description="Certificates that the broker's own must come from; the system's when absent.")
    ] = None
    cert_file: Annotated[Path | None, Meta(description="Our client certificate, if the broker asks for one (PEM).")] = (
        None
    )
    key_file: Annotated[Path | None, Meta(description="Private key of the client certificate (PEM, mode 0600).")] = None
    username: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="User at the broker; a broker with users holds it to be our id."),
    ] = None
    password_file: Annotated[
        Path | None, Meta(description="File that holds the password on one line and that only we can read (0600).")
    ] = None
    keepalive_s: Annotated[
        int,
        Meta(description="The broker takes us for gone after 1.5 times this silence, in seconds.", ge=5, le=3600),
    ] = 20
    mqtt_version: Annotated[
        Literal["3.1.1", "5"],
        Meta(description="Version of MQTT; 5 is half as fast but shows why a broker refuses something."),
    ] = "3.1.1"
    connect_timeout_s: Annotated[
        float, Meta(description="How long one attempt to connect may take, in seconds.", gt=0, le=300)
    ] = 5.0

    def __post_init__(self) -> None:
        if not self.tls and (self.ca_file or self.cert_file or self.key_file):
            raise SettingsError(
                "broker: certificates are given but the URL says mqtt://, which is not encrypted; write mqtts://"
            )
        if self.key_file and not self.cert_file:
            raise SettingsError("broker: key_file is given without cert_file; name the certificate it belongs to")
        if self.password_file and not self.username:
            raise SettingsError("broker: password_file is given without username; set broker.username too")

    @property
    def url(self) -> str:
        """The URL form of hosts and encryption, without user."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{','.join(map(str, self.hosts))}"

    def password(self) -> str | None:
        """Read the password from its file. Raises SettingsError when others could read it too."""
        return read_secret(self.password_file, what="password file") if self.password_file else None


def broker_from_url(url: str, **options: Any) -> BrokerSettings:
    """Read a broker URL such as ``mqtt://localhost`` or ``mqtts://me@a.org:8883,b.org``; options are other fields.

    Raises SettingsError, which never repeats the URL's user part, so that a password in it stays unseen.
    """
    scheme, separator, rest = url.strip().partition("://")
    user, at, addresses = rest.rpartition("@")
    if not separator or scheme.lower() not in PORTS:
        shown = "the broker URL" if "@" in url else f"broker URL {url!r}"
        raise SettingsError(f"{shown} does not start with mqtt:// or mqtts://: write {_SHAPE}")
    if ":" in user:
        raise SettingsError(
            "the broker URL holds a password, which logs and process lists would show: write it into a file that "
            "only you can read and name that file as broker.password_file (or FEDMON_BROKER_PASSWORD_FILE)"
        )
    if at and not user:
        raise SettingsError(f"the broker URL has an empty user before '@': write {_SHAPE}")
    scheme = scheme.lower()
    hosts = tuple(_host(address, scheme) for address in addresses.removesuffix("/").split(","))
    if user and not options.get("username"):
        options["username"] = unquote(user)
    return BrokerSettings(hosts=hosts, tls=scheme == "mqtts", **options)


def _host(address: str, scheme: str) -> BrokerHost:
    address = address.strip(" ")
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit("//"), "", None
    # What the library drops in silence (line ends) or reads as another part would change the address, so only an
    # address that is nothing but host and port counts.
    only_address = parts.netloc == address and not address.endswith(":") and "@" not in address
    if not only_address or not _HOST.fullmatch(host) or port == 0:
        raise SettingsError(f"broker address {address!r} is not a host with an optional port: write {_SHAPE}")
    return BrokerHost(host=host, port=port if port is not None else PORTS[scheme])


def read_secret(path: Path, *, what: str) -> str:
    """Return the text of a secret file without the line end.

    Raises SettingsError when it is missing, open to other users, empty, over 16 KiB or not UTF-8; the message never
    holds the secret.
    """
    try:
        with path.open("rb") as file:
            # The mode is taken from the open file, so that what is checked is what is read.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & _OTHERS:
                raise SettingsError(f"{what} {path} is open to other users (mode {mode:04o}): chmod 600 {path}")
            content = file.read(_MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"cannot read {what} {path}: {error.strerror}") from None
    if len(content) > _MAX_SECRET_BYTES:
        raise SettingsError(f"{what} {path} is longer than {_MAX_SECRET_BYTES} bytes; is it the right file?")
    try:
        secret = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SettingsError(f"{what} {path} is not UTF-8 text") from None
    if not secret:
        raise SettingsError(f"{what} {path} is empty; write the secret into it")
    if any(character in secret for character in "\r\n\0"):
        raise SettingsError(f"{what} {path} holds more than one line")
    return secret
