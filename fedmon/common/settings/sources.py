"""Read a settings file, let the environment override it, and refuse unknown settings."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fedmon.common.errors import SettingsError
from fedmon.common.ids import kept_researcher_id
from fedmon.common.settings.broker import DEFAULT_URL, PORTS, BrokerHost, BrokerSettings, broker_from_url
from fedmon.common.settings.keys import HISTORIC, OTHER_VARIABLES, Key, Party, keys_of, sections_of
from fedmon.common.settings.values import ANY_NAME, NodeSettings, ResearcherSettings

NODE_FILE = "node.toml"
RESEARCHER_FILE = "researcher.toml"
_MAX_BYTES = 1_048_576

_PATH_TEXT = Annotated[str, msgspec.Meta(min_length=1)]

Sections = dict[str, dict[str, Any]]
Origins = dict[tuple[str, str], str]
"""By section and key, ``file`` or the variables that set a value; without one it is the default."""


def load_node(folder: Path, environ: Mapping[str, str]) -> NodeSettings:
    """Read the settings of the node that lives in ``folder``.

    Raises SettingsError naming the file or variable, the key, and the allowed values.
    """
    path = folder / NODE_FILE
    found, _ = _sections("node", path, environ)
    if "id" not in found["node"]:
        raise SettingsError(f"{path}: [node] id is missing: give the node a name, or make one with `fedmon node init`")
    with _named(path):
        plugins = {name: own for name, own in found["plugins"].items() if own}
        return NodeSettings(plugins=plugins, **_parts("node", found), **found["node"])


def node_origins(folder: Path, environ: Mapping[str, str]) -> Origins:
    """Return the origins of the settings of a node. Raises SettingsError."""
    return _sections("node", folder / NODE_FILE, environ)[1]


def load_researcher(path: Path | None, environ: Mapping[str, str]) -> ResearcherSettings:
    """Read the settings of a researcher.

    ``path`` None stands for FEDMON_RESEARCHER_FILE, else for researcher.toml in the user's configuration folder; only
    that last one may be absent. A missing id is made once and kept in the folder. Raises SettingsError, and
    StorageError when the folder cannot be made.
    """
    from platformdirs import PlatformDirs

    if path is None and (named := environ.get("FEDMON_RESEARCHER_FILE")):
        try:
            path = Path(named).expanduser()
        except RuntimeError as error:
            raise SettingsError(f"FEDMON_RESEARCHER_FILE = {named!r}: {error}") from None
    usual = PlatformDirs("fedmon", appauthor=False)
    file = path or usual.user_config_path / RESEARCHER_FILE
    found, _ = _sections("researcher", file, environ, may_be_absent=path is None)
    own = found["researcher"]
    folder = own.pop("folder", None) or usual.user_data_path / "researcher"
    with _named(file):
        parts = _parts("researcher", found)
        researcher_id = own.pop("id", None) or kept_researcher_id(folder)
        return ResearcherSettings(id=researcher_id, folder=folder, **parts, **own)


def load_broker(url: str, environ: Mapping[str, str]) -> BrokerSettings:
    """Return how to reach the broker of a URL, which may name the user; FEDMON_BROKER_* variables give the rest.

    Raises SettingsError.
    """
    keys = {(key.section, key.name): key for key in keys_of("node") if key.section == "broker"}
    found: Sections = {"broker": {}}
    _override(found, keys, environ)
    told = {"url", "username"} if "@" in url else {"url"}
    return broker_from_url(url, **{name: value for name, value in found["broker"].items() if name not in told})


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Prefix errors about values with the file's name."""
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"{path} (or environment): {error}") from None


def _sections(
    party: Party, path: Path, environ: Mapping[str, str], *, may_be_absent: bool = False
) -> tuple[Sections, Origins]:
    origins: Origins = {}
    keys = {(key.section, key.name): key for key in keys_of(party)}
    found: Sections = {key.section: {} for key in keys.values()}
    for section, values in _read(path, may_be_absent=may_be_absent).items():
        if section not in found:
            raise SettingsError(f"{path}: unknown section [{section}]{_instead(section, found)}")
        if not isinstance(values, dict):
            raise SettingsError(f"{path}: {section} is outside of a section; sections are {', '.join(found)}")
        for name, value in values.items():
            key = keys.get((section, name)) or keys.get((section, ANY_NAME))
            if key is None:
                names = [known for of, known in keys if of == section]
                raise SettingsError(f"{path}: unknown key {name!r} in [{section}]{_instead(name, names)}")
            found[section][name] = _value(key, value, f"{path}: [{section}] {name}", base=path.parent)
            origins[section, name] = "file"
    return found, origins | _override(found, keys, environ)


def _read(path: Path, *, may_be_absent: bool) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        if may_be_absent:
            return {}
        raise SettingsError(f"settings file {path} does not exist") from None
    except OSError as error:
        raise SettingsError(f"cannot read settings file {path}: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise SettingsError(f"settings file {path} is longer than {_MAX_BYTES} bytes; is it the right file?")
    try:
        return msgspec.toml.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None


def _override(found: Sections, keys: Mapping[tuple[str, str], Key], environ: Mapping[str, str]) -> Origins:
    """Let variables win over the file, and ours over the historic ones; return them by the settings that they set."""
    origins: Origins = {}
    host, port = environ.get("MQTT_BROKER", ""), environ.get("MQTT_BROKER_PORT", "")
    if host or port:
        found["broker"]["url"] = _historic_url(found["broker"].get("url", DEFAULT_URL), host, port)
        origins["broker", "url"] = ", ".join(filter(environ.get, ("MQTT_BROKER", "MQTT_BROKER_PORT")))
    for variable, place in HISTORIC.items():
        if environ.get(variable) and place in keys and place != ("broker", "url"):
            found[place[0]][place[1]] = _value(keys[place], environ[variable], variable, base=None)
            origins[place] = variable
    if "@" in environ.get("FEDMON_BROKER_URL", ""):  # a user in it goes before that of the file, too
        found["broker"].pop("username", None)
        origins["broker", "username"] = "FEDMON_BROKER_URL"
    known = {key.variable: key for party in ("node", "researcher") for key in keys_of(party) if key.variable}
    for variable in environ:
        if not variable.startswith("FEDMON_") or variable in OTHER_VARIABLES:
            continue
        key = known.get(variable)
        if key is None:
            raise SettingsError(f"environment variable {variable} is not a setting{_instead(variable, known)}")
        if (key.section, key.name) in keys:
            found[key.section][key.name] = _value(key, environ[variable], variable, base=None)
            origins[key.section, key.name] = variable
    return origins


def _historic_url(url: str, host: str, port: str) -> str:
    """Return the URL with its host or port replaced as MQTT_BROKER and MQTT_BROKER_PORT say."""
    if port and not port.isdecimal():
        raise SettingsError(f"MQTT_BROKER_PORT = {port!r}: allowed is a whole number from 1 to 65535")
    broker = broker_from_url(url)
    scheme, user = "mqtts" if broker.tls else "mqtt", f"{broker.username}@" if broker.username else ""
    hosts = (BrokerHost(host=host.strip("[]"), port=PORTS[scheme]),) if host else broker.hosts
    addresses = (str(BrokerHost(host=each.host, port=int(port or each.port))) for each in hosts)
    return f"{scheme}://{user}{','.join(addresses)}"


def _value(key: Key, value: Any, where: str, *, base: Path | None) -> Any:
    """Check one value; ``base`` is the file's folder, None for a text from the environment."""
    try:
        if base is None and key.kind == "array":
            value = [part.strip() for part in value.split(",") if part.strip()]
        if key.kind == "path":
            path = Path(msgspec.convert(value, _PATH_TEXT)).expanduser()
            return (base / path).absolute() if base else path.absolute()
        return msgspec.convert(value, key.type, strict=base is not None)
    except (msgspec.ValidationError, RuntimeError) as error:
        raise SettingsError(f"{where} = {value!r}: allowed is {key.allowed()} ({error})") from None


def _parts(party: Party, found: Sections) -> dict[str, Any]:
    """Return the settings of each section that has a class for them."""
    plain = {name: kind for name, kind in sections_of(party).items() if name != "broker"}
    broker = broker_from_url(found["broker"].pop("url", DEFAULT_URL), **found["broker"])
    return {"broker": broker} | {name: kind(**found[name]) for name, kind in plain.items()}


def _instead(wrong: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; allowed are {', '.join(known)}"
