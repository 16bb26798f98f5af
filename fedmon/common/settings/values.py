"""The settings of a node and of a researcher; the descriptions here also make the documented files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fedmon.common.errors import SettingsError
from fedmon.common.ids import ID_PATTERN, checked_id
from fedmon.common.settings.broker import BrokerSettings
from fedmon.common.settings.energy import EnergySettings
from fedmon.common.settings.perf import PerfSettings
from fedmon.common.settings.plugins import PluginNames, PluginSettings
from fedmon.common.settings.recording import RecordingSettings
from fedmon.common.settings.runs import RunsSettings
from fedmon.common.settings.secret import read_secret

EVERYBODY = "*"
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "NONE"]
Wire = Literal["fedmon", "fedbiomed4"]

_WIRE = "Wire: fedmon, or fedbiomed4 to talk to programs of Fed-BioMed 4.4."
_STRICT = (
    "Refuse what carries no sender in its topic; a node also refuses a directed command that does not name the node. "
    "When absent: on whenever we name ourselves to the broker "
    "(username or certificate), except with the wire fedbiomed4, whose topics never name a sender."
)


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often the node measures."""

    enabled: Annotated[bool, Meta(description="Measure and publish metrics of this machine.")] = True
    interval_s: Annotated[
        float, Meta(description="Seconds between two samples while nobody asks for another pace.", ge=0.2, le=3600)
    ] = 5.0
    min_interval_s: Annotated[
        float, Meta(description="The fastest pace that a researcher may ask for, in seconds.", ge=0.2, le=3600)
    ] = 0.2
    cost_budget_ratio: Annotated[
        float,
        Meta(
            description="Share of a core that sampling may take, 0 to 1; above it samples are taken further apart.",
            gt=0,
            le=1,
        ),
    ] = 0.05
    plugins: PluginNames = ()
    per_core: Annotated[
        bool, Meta(description="Measure each CPU by itself, too: its modes, busy share and frequency.")
    ] = False
    proc_root: Annotated[
        Path, Meta(description="Where /proc is; a tree of files that stands in for it makes results simulated.")
    ] = Path("/proc")
    sys_root: Annotated[Path, Meta(description="Where /sys is, or a tree that stands in for it.")] = Path("/sys")
    cgroup_root: Annotated[
        Path, Meta(description="Where the cgroup file systems are, or a tree that stands in for them.")
    ] = Path("/sys/fs/cgroup")

    def __post_init__(self) -> None:
        if self.min_interval_s > self.interval_s:
            raise SettingsError(
                f"metrics: min_interval_s = {self.min_interval_s:g} is above interval_s = {self.interval_s:g}; "
                "lower the first or raise the second"
            )


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the node obeys, and what leaves it."""

    researchers: Annotated[
        tuple[str, ...], Meta(description='Ids of the researchers whom this node obeys; "*" is everybody.')
    ] = ()
    datasets: Annotated[
        Mapping[str, tuple[str, ...]],
        Meta(
            description="Name or id of a dataset, and the researchers who may see it; "
            "one that is not named here is shown to every researcher whom the node obeys."
        ),
    ] = {}
    metrics: Annotated[
        tuple[str, ...], Meta(description='Names of the metrics that leave the node, as globs such as "host_cpu_*".')
    ] = ("*",)
    log_level: Annotated[
        LogLevel, Meta(description="The lowest level of log records that leaves the node; NONE: none leaves.")
    ] = "WARNING"
    job_output: Annotated[
        bool,
        Meta(
            description="Let what a job prints and logs, and the text of its errors, leave to the researcher who runs "
            "it. It may hold anything of your data; results and scalars of an approved plan leave in any case."
        ),
    ] = False

    def __post_init__(self) -> None:
        for key, names in (
            ("researchers", self.researchers),
            *((f"datasets.{d}", r) for d, r in self.datasets.items()),
        ):
            for name in names:
                if name != EVERYBODY and not ID_PATTERN.fullmatch(name):
                    raise SettingsError(
                        f"policy: {key} names {name!r}, which is no researcher id: use 1 to 64 letters, digits, "
                        '"_" or "-", or "*" for everybody'
                    )


class RepositorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The file repository, for training plans too large for a message."""

    url: Annotated[
        Annotated[str, Meta(pattern="^https?://[^@]+$")] | None,
        Meta(description="Address to which files are uploaded."),
    ] = None
    token_file: Annotated[
        Path | None, Meta(description="File that holds the upload token on one line and that only we can read (0600).")
    ] = None
    allowed_urls: Annotated[
        tuple[Annotated[str, Meta(pattern="^https?://[^@]+$")], ...],
        Meta(description="Address prefixes from which this party downloads files; nothing else is fetched."),
    ] = ()

    def token(self) -> str | None:
        """Read the upload token from its file. Raises SettingsError when others could read it too."""
        return read_secret(self.token_file, what="token file") if self.token_file else None


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a node is told at its start."""

    id: Annotated[str, Meta(description="Name of this node: 1 to 64 letters, digits, '_' or '-'.")]
    broker: BrokerSettings
    wire: Annotated[Wire, Meta(description=_WIRE)] = "fedmon"
    monitoring_topic: Annotated[
        Literal["node", "flat"],
        Meta(
            description="Publish metrics on general/monitoring/NODE_ID (node) or on general/monitoring itself (flat)."
        ),
    ] = "node"
    strict_identity: Annotated[bool | None, Meta(description=_STRICT)] = None
    default_plans_dir: Annotated[
        Path | None,
        Meta(description="Folder of training plans (*.py) of the owner; each is pending until he approves it."),
    ] = None
    max_plan_bytes: Annotated[
        int, Meta(description="The largest training plan that this node takes, in bytes.", ge=1024, le=67_108_864)
    ] = 1_048_576
    policy: PolicySettings = PolicySettings()
    metrics: MetricsSettings = MetricsSettings()
    recording: RecordingSettings = RecordingSettings()
    energy: EnergySettings = EnergySettings()
    perf: PerfSettings = PerfSettings()
    runs: RunsSettings = RunsSettings()
    repository: RepositorySettings = RepositorySettings()
    plugins: Mapping[str, PluginSettings] = {}

    def __post_init__(self) -> None:
        _check_id(self.id, "node.id")
        _check_wire(self.wire, strict_identity=self.strict_identity)
        if self.wire == "fedbiomed4" and self.monitoring_topic == "flat":
            raise SettingsError(
                'node: monitoring_topic = "flat" does not go with wire = "fedbiomed4": programs of Fed-BioMed read '
                'general/monitoring and stop at our samples; use "node"'
            )

    @property
    def identity_is_strict(self) -> bool:
        """Whether messages without a sender in their topic are refused."""
        return _is_strict(self.wire, self.broker, strict_identity=self.strict_identity)


class ResearcherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a researcher's program is told at its start."""

    id: Annotated[str, Meta(description="Name of this researcher; made once and kept in the folder when absent here.")]
    broker: BrokerSettings
    wire: Annotated[Wire, Meta(description=_WIRE)] = "fedmon"
    strict_identity: Annotated[bool | None, Meta(description=_STRICT)] = None
    timeout_s: Annotated[
        float, Meta(description="How long a request waits for its answers at most, in seconds.", gt=0, le=3600)
    ] = 5.0
    folder: Annotated[
        Path,
        Meta(description="Folder of this researcher's id and waiting replies; the user's data folder when absent."),
    ]
    max_nodes: Annotated[
        int, Meta(description="Nodes that are kept track of; more are counted and reported.", ge=1, le=1_000_000)
    ] = 10_000
    repository: RepositorySettings = RepositorySettings()

    def __post_init__(self) -> None:
        _check_id(self.id, "researcher.id")
        _check_wire(self.wire, strict_identity=self.strict_identity)

    @property
    def identity_is_strict(self) -> bool:
        """Whether messages without a sender in their topic are refused."""
        return _is_strict(self.wire, self.broker, strict_identity=self.strict_identity)


def _check_id(text: str, what: str) -> None:
    try:
        checked_id(text, what=what)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _check_wire(wire: Wire, *, strict_identity: bool | None) -> None:
    if wire == "fedbiomed4" and strict_identity:
        raise SettingsError(
            'strict_identity = true does not go with wire = "fedbiomed4", whose topics name no sender; take one away'
        )


def _is_strict(wire: Wire, broker: BrokerSettings, *, strict_identity: bool | None) -> bool:
    if wire == "fedbiomed4":
        return False
    return broker.has_identity if strict_identity is None else strict_identity
