"""Passwords of the broker's users: made, read from files, and hashed the way mosquitto reads them."""

from __future__ import annotations

import base64
import hashlib
import secrets

from fedmon.common.errors import SettingsError

MIN_LENGTH = 12
MAX_LENGTH = 512

# Mosquitto checks a password on its only thread, before it knows who asks: 5,000 rounds take it 3 ms, so that 1,000
# nodes are back 3 s after a restart. A generated password has 192 bits and needs no rounds at all.
ROUNDS = 5_000
_SALT_BYTES = 12
_HASH_BYTES = 64


def generate() -> str:
    """Make a password of 192 random bits."""
    return secrets.token_urlsafe(24)


def checked(password: str, *, source: str) -> str:
    """Return a password that a person chose, when it will do.

    Raises SettingsError naming ``source``, never the password.
    """
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise SettingsError(f"the password from {source} must have {MIN_LENGTH} to {MAX_LENGTH} characters")
    if not password.isprintable():
        raise SettingsError(f"the password from {source} holds characters that cannot be typed; it must be one line")
    return password


def hashed(password: str) -> str:
    """Return what stands in a password file of mosquitto for this password.

    Source: mosquitto 2.0, src/password_mosq.c: ``$7$rounds$salt$hash``, PBKDF2-HMAC-SHA512, salt of 12 bytes.
    """
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ROUNDS, _HASH_BYTES)
    return f"$7${ROUNDS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
