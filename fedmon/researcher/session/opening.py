"""What a federation is opened with: arguments over settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.ids import checked_id
from fedmon.common.settings import BrokerSettings, ResearcherSettings, broker_from_url, load_researcher


class BrokerArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `Federation` that say where the broker is and who we are to it; null for what is not given."""

    url: str | None = None
    username: str | None = None
    password_file: str | Path | None = None
    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None

    def over(self, broker: BrokerSettings) -> BrokerSettings:
        """Return these arguments over settings; another URL takes over no secret that was meant for the first.

        Raises SettingsError.
        """
        options: Any = {
            name: value if name == "username" else Path(value).expanduser()
            for name in ("username", "password_file", "ca_file", "cert_file", "key_file")
            if (value := getattr(self, name)) is not None
        }
        if self.url is not None:
            return broker_from_url(
                self.url,
                keepalive_s=broker.keepalive_s,
                mqtt_version=broker.mqtt_version,
                connect_timeout_s=broker.connect_timeout_s,
                **options,
            )
        return msgspec.structs.replace(broker, **options)


def opened_with(
    settings: ResearcherSettings | str | Path | None,
    *,
    broker: BrokerArguments,
    researcher_id: str | None,
    folder: str | Path | None,
) -> ResearcherSettings:
    """Return the settings that hold: arguments first, then ``settings``, or the user's file and environment.

    A broker that knows its users holds each to its own name, so that a user name given here is the id as well.
    Raises SettingsError, InvalidIdError, and StorageError when an id cannot be kept.
    """
    chosen = broker.over(settings.broker) if isinstance(settings, ResearcherSettings) else None
    if researcher_id is None and (broker.username or (broker.url and chosen is None)):
        researcher_id = broker.username or broker_from_url(broker.url or "").username
    if isinstance(settings, ResearcherSettings):
        read = settings
        if researcher_id is not None:
            read = msgspec.structs.replace(read, id=researcher_id)
        if folder is not None:
            read = msgspec.structs.replace(read, folder=Path(folder).expanduser())
    else:
        environ = dict(os.environ)
        if researcher_id is not None:
            environ["FEDMON_RESEARCHER_ID"] = checked_id(researcher_id, what="researcher_id")
        if folder is not None:
            environ["FEDMON_RESEARCHER_FOLDER"] = str(Path(folder).expanduser())
        read = load_researcher(Path(settings) if settings is not None else None, environ)
        chosen = broker.over(read.broker)
    opened = msgspec.structs.replace(read, broker=chosen or read.broker)
    # A password that cannot be read is said here, where the caller is, and not on the thread that connects.
    opened.broker.password()
    return opened
