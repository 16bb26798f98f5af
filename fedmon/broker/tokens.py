"""The tokens that uploads to the file repository need: one for each party, or one that all share."""

from __future__ import annotations

import hashlib
import hmac

from fedmon.broker import passwords
from fedmon.broker.errors import NameTakenError, UnknownTokenError, UnknownUserError
from fedmon.broker.folder import BrokerFolder
from fedmon.common.ids import checked_id

TOKENS_FILE = "secrets/repository-tokens"


class Tokens:
    """The tokens of the parties in a broker's folder, of which only hashes are kept, and the ``shared`` one.

    Several processes may change them; a change holds from the next upload on.
    """

    def __init__(self, folder: BrokerFolder, *, shared: str | None = None) -> None:
        self._folder, self._shared = folder, shared

    def parties(self) -> list[str]:
        """Return who has a token. Raises StorageError."""
        return sorted(self._folder.entries(TOKENS_FILE))

    def add(self, party: str, *, replace: bool = False) -> str:
        """Make a token for a party and return it. Raises InvalidIdError, and NameTakenError unless ``replace``."""
        checked_id(party, what="name of the party")
        self._folder.make()
        token = passwords.generate()
        with self._folder.changing():
            entries = self._folder.entries(TOKENS_FILE)
            if party in entries and not replace:
                raise NameTakenError(f"{party!r} has a token already; use --replace to give it a new one")
            self._folder.replace_entries(TOKENS_FILE, entries | {party: _digest(token)})
        return token

    def remove(self, party: str) -> None:
        """Remove a party's token. Raises UnknownUserError."""
        if self._folder.path.is_dir():
            with self._folder.changing():
                entries = self._folder.entries(TOKENS_FILE)
                if entries.pop(party, None) is not None:
                    self._folder.replace_entries(TOKENS_FILE, entries)
                    return
        raise UnknownUserError(
            f"{party!r} has no token in {self._folder.path}; `fedmon broker repository token list` shows who has one"
        )

    def party_of(self, token: str) -> str | None:
        """Return whose token this is, None for the shared one. Raises UnknownTokenError or StorageError."""
        given = _digest(token)
        if self._shared is not None and hmac.compare_digest(given, _digest(self._shared)):
            return None
        for party, digest in self._folder.entries(TOKENS_FILE).items():
            if hmac.compare_digest(given.encode(), digest.encode()):
                return party
        raise UnknownTokenError("uploads need a token of the repository: Authorization: Bearer <token>")


def _digest(token: str) -> str:
    # A token has 192 random bits, so that one round is enough.
    return hashlib.sha256(token.encode()).hexdigest()
