"""The broker's users: one password file a role, and names that no other party can be taken for."""

from __future__ import annotations

import msgspec

from fedmon.broker.errors import NameTakenError, UnknownUserError
from fedmon.broker.folder import BrokerFolder
from fedmon.broker.passwords import hashed
from fedmon.broker.roles import Role
from fedmon.common.ids import JOB_PREFIX, checked_id


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A party of the federation as the broker knows it; its name is its id in every topic."""

    name: str
    role: Role


class Users:
    """The users of the broker in ``folder``. Several processes may change them; each change is whole or not there."""

    def __init__(self, folder: BrokerFolder) -> None:
        self._folder = folder

    def all(self) -> list[User]:
        """Return every user, by role and name. Raises StorageError for a password file that cannot be read."""
        return [User(name=name, role=role) for role in Role for name in sorted(self._read(role))]

    def add(self, name: str, role: Role, password: str, *, replace: bool = False) -> None:
        """Add a user, or give an existing one of this role a new password when ``replace`` is set.

        Raises InvalidIdError for a name that cannot be an id, and NameTakenError.
        """
        checked_id(name, what="user name")
        self._folder.make()
        with self._folder.changing():
            self._refuse_taken(name, role, replace=replace)
            self._write(role, self._read(role) | {name: hashed(password)})

    def remove(self, name: str) -> Role:
        """Remove a user and return the role that it had. Raises UnknownUserError."""
        if self._folder.path.is_dir():
            with self._folder.changing():
                for role in Role:
                    entries = self._read(role)
                    if entries.pop(name, None) is not None:
                        self._write(role, entries)
                        return role
        raise UnknownUserError(
            f"there is no user {name!r} in {self._folder.path}; `fedmon broker user list` shows who there is"
        )

    def _refuse_taken(self, name: str, role: Role, *, replace: bool) -> None:
        if role is Role.NODE and name.startswith(JOB_PREFIX):
            raise NameTakenError(
                f"names that begin with {JOB_PREFIX!r} are those of batch jobs, and any job could speak for a node "
                f"that is called {name!r}; choose another name"
            )
        for user in self.all():
            if user.name == name and (user.role is not role or not replace):
                raise NameTakenError(
                    f"{name!r} is the name of a {user.role.value} already; "
                    + ("use --replace to give it a new password" if user.role is role else "choose another name")
                )

    def _read(self, role: Role) -> dict[str, str]:
        return self._folder.entries(f"passwords/{role.file_name}")

    def _write(self, role: Role, entries: dict[str, str]) -> None:
        self._folder.replace_entries(f"passwords/{role.file_name}", entries)
