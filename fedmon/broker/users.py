"""The parties that a broker and its file repository let in: roles, users, passwords, upload tokens."""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import secrets

from fedmon.broker.file_store import UploadRefusedError
from fedmon.broker.folder import BrokerFolder
from fedmon.common.errors import ConflictError, NotFoundError, SettingsError
from fedmon.common.ids import JOB_PREFIX, checked_id

MIN_LENGTH, MAX_LENGTH = 12, 512
TOKENS_FILE = "secrets/repository-tokens"
# mosquitto checks a password on its only thread, before it knows who asks: 5,000 rounds take it 3 ms, so that 1,000
# nodes are back 3 s after a restart. A generated password has 192 bits and needs no rounds at all.
ROUNDS = 5_000
_SALT_BYTES = 12
_HASH_BYTES = 64


class Role(enum.Enum):
    """The role of a user of the broker; the order is the order of the listeners' ports.

    Each role has a listener, a password file and an access list.
    """

    NODE = "node"
    RESEARCHER = "researcher"
    MONITOR = "monitor"
    ADMIN = "admin"
    JOB = "job"

    @property
    def file_name(self) -> str:
        """Name of this role's password file and access list."""
        return f"{self.value}s"

    @property
    def port_offset(self) -> int:
        """Distance of the port of this role's listener from the first."""
        return list(Role).index(self)


def generated_password() -> str:
    """Make a password, or token, of 192 random bits."""
    return secrets.token_urlsafe(24)


def checked_password(password: str, *, source: str) -> str:
    """Return a password that a person chose. Raises SettingsError naming ``source``, never the password."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise SettingsError(f"the password from {source} must have {MIN_LENGTH} to {MAX_LENGTH} characters")
    if not password.isprintable():
        raise SettingsError(f"the password from {source} holds characters that cannot be typed; it must be one line")
    return password


def hashed_password(password: str) -> str:
    """Return the entry of a password in mosquitto's password file.

    Source: mosquitto 2.0, src/password_mosq.c: ``$7$rounds$salt$hash``, PBKDF2-HMAC-SHA512, salt of 12 bytes.
    """
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ROUNDS, _HASH_BYTES)
    return f"$7${ROUNDS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


class Users:
    """The users of the broker in ``folder``, in one password file a role. Several processes may change them."""

    def __init__(self, folder: BrokerFolder) -> None:
        self._folder = folder

    def all(self) -> list[tuple[str, Role]]:
        """Return every user, by role and name. Raises StorageError if a password file cannot be read.

        The name of a user is the id of a party in every topic.
        """
        return [(name, role) for role in Role for name in sorted(self._folder.entries(_password_file(role)))]

    def add(self, name: str, role: Role, password: str, *, replace: bool = False) -> None:
        """Add a user, or give an existing one of this role a new password if ``replace`` is set.

        Raises InvalidIdError for a name that cannot be an id, and ConflictError.
        """
        checked_id(name, what="user name")
        self._folder.make()
        with self._folder.edited_entries(_password_file(role)) as entries:
            self._refuse_taken(name, role, replace=replace)
            entries[name] = hashed_password(password)

    def remove(self, name: str) -> Role:
        """Remove a user and return their role. Raises NotFoundError."""
        for role in Role:
            with self._folder.edited_entries(_password_file(role)) as entries:
                if entries.pop(name, None) is not None:
                    return role
        raise NotFoundError(f"user {name!r} not found; see: {self._folder.command('user list')}")

    def _refuse_taken(self, name: str, role: Role, *, replace: bool) -> None:
        if role is Role.NODE and name.startswith(JOB_PREFIX):
            raise ConflictError(
                f"names that begin with {JOB_PREFIX!r} are those of batch jobs, and any job could speak for a node "
                f"that is called {name!r}; choose another name"
            )
        for user, its_role in self.all():
            if user == name and (its_role is not role or not replace):
                raise ConflictError(
                    f"{name!r} is the name of a {its_role.value} already; "
                    + ("use --replace to give it a new password" if its_role is role else "choose another name")
                )


class Tokens:
    """The upload tokens of parties in a broker's folder, of which only hashes are kept, and the ``shared`` one.

    Several processes may change them; a change holds from the next upload on.
    """

    def __init__(self, folder: BrokerFolder, *, shared: str | None = None) -> None:
        self._folder, self._shared = folder, shared

    def parties(self) -> list[str]:
        """Return the parties that have a token. Raises StorageError."""
        return sorted(self._folder.entries(TOKENS_FILE))

    def add(self, party: str, token: str, *, replace: bool = False) -> None:
        """Give a party a token. Raises InvalidIdError, and ConflictError unless ``replace``."""
        checked_id(party, what="name of the party")
        self._folder.make()
        with self._folder.edited_entries(TOKENS_FILE) as entries:
            if party in entries and not replace:
                raise ConflictError(f"{party!r} has a token already; use --replace to give it a new one")
            entries[party] = _digest(token)

    def remove(self, party: str) -> None:
        """Remove a party's token. Raises NotFoundError."""
        with self._folder.edited_entries(TOKENS_FILE) as entries:
            if entries.pop(party, None) is not None:
                return
        raise NotFoundError(f"{party!r} has no token; see: {self._folder.command('repository token list')}")

    def party_of(self, token: str) -> str | None:
        """Return the party of a token, None for the shared one. Raises UploadRefusedError or StorageError."""
        given = _digest(token)
        if self._shared is not None and hmac.compare_digest(given, _digest(self._shared)):
            return None
        for party, digest in self._folder.entries(TOKENS_FILE).items():
            if hmac.compare_digest(given.encode(), digest.encode()):
                return party
        raise UploadRefusedError("uploads need a token of the repository: Authorization: Bearer <token>", status=401)


def _password_file(role: Role) -> str:
    return f"passwords/{role.file_name}"


def _digest(token: str) -> str:
    # A token has 192 random bits, so that one round is enough.
    return hashlib.sha256(token.encode()).hexdigest()
