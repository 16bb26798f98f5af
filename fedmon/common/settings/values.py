"""The settings of a node and of a researcher; the descriptions here also make the documented files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fedmon.common.errors import SettingsError
from fedmon.common.ids import ID_PATTERN, checked_id
from fedmon.common.settings.broker import BrokerSettings, read_secret

EVERYBODY = "*"
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "NONE"]
Wire = Literal["fedmon", "fedbiomed4"]
SandboxLevel = Literal["bubblewrap", "landlock", "limits"]
PerfGroup = Literal[
    "software", "cycles", "branches", "cache", "l2", "l2cache", "l3", "l3cache", "flops_sp", "flops_dp", "memory"
]

ANY_NAME = "NAME"
"""Stands in the documented file for the name of a plug-in."""

PluginNames = Annotated[
    tuple[str, ...],
    Meta(
        description="Names of the collector plug-ins to load, from packages installed beside fedmon; "
        "they run with all rights of the node."
    ),
]
PluginSettings = Annotated[
    Mapping[str, Any], Meta(description="Settings of the collector plug-in of this name; it alone knows the keys.")
]

_MIB, _GIB = 2**20, 2**30


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often the node measures."""

    enabled: Annotated[bool, Meta(description="Measure and publish metrics of this machine.")] = True
    interval_s: Annotated[
        float, Meta(description="Seconds between two samples, unless a researcher asks for less.", ge=0.2, le=3600)
    ] = 5.0
    min_interval_s: Annotated[
        float, Meta(description="The shortest interval that a researcher may ask for, in seconds.", ge=0.2, le=3600)
    ] = 0.2
    cost_budget_ratio: Annotated[
        float,
        Meta(
            description="Share of a core that sampling may take, 0 to 1; above it the interval grows.",
            gt=0,
            le=1,
        ),
    ] = 0.05
    plugins: PluginNames = ()
    per_core: Annotated[
        bool, Meta(description="Measure each CPU by itself, too: its modes, busy share and frequency.")
    ] = False
    proc_root: Annotated[
        Path, Meta(description="Path of /proc; another tree of files makes the results simulated.")
    ] = Path("/proc")
    sys_root: Annotated[Path, Meta(description="Path of /sys, or of a tree of files in its place.")] = Path("/sys")
    cgroup_root: Annotated[Path, Meta(description="Path of the cgroup file systems, or of a tree of files.")] = Path(
        "/sys/fs/cgroup"
    )

    def __post_init__(self) -> None:
        if self.min_interval_s > self.interval_s:
            raise SettingsError(
                f"metrics: min_interval_s = {self.min_interval_s:g} is above interval_s = {self.interval_s:g}; "
                "lower the first or raise the second"
            )


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Researchers that the node obeys, and data that leaves it."""

    researchers: Annotated[
        tuple[str, ...], Meta(description='Ids of the researchers whom this node obeys; "*" is every researcher.')
    ] = ()
    datasets: Annotated[
        Mapping[str, tuple[str, ...]],
        Meta(
            description="Name or id of a dataset, and the researchers who may see it; "
            "a dataset that is not named here is shown to every researcher whom the node obeys."
        ),
    ] = {}
    metrics: Annotated[
        tuple[str, ...], Meta(description='Names of the metrics that leave the node, as globs such as "host_cpu_*".')
    ] = ("*",)
    log_level: Annotated[
        LogLevel, Meta(description="The lowest level of log records that leaves the node; NONE: no record leaves.")
    ] = "WARNING"
    job_output: Annotated[
        bool,
        Meta(
            description="Send a job's output, log records and error texts to the researcher who runs "
            "it. They can contain any of your data, and the release gate does not check them."
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
                        f"policy: {key} names {name!r}, not a researcher id: use 1 to 64 letters, digits, "
                        '"_" or "-", or "*" for every researcher'
                    )


class RecordingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The node's recording, from which missed samples are sent again."""

    enabled: Annotated[
        bool, Meta(description="Keep samples in recording.sqlite in the node's folder, and send them again on request.")
    ] = True
    max_bytes: Annotated[
        int,
        Meta(
            description="Largest size of the recording on disk, in bytes; the oldest samples are dropped first.",
            ge=1_048_576,
            le=1_099_511_627_776,
        ),
    ] = 268_435_456
    max_age_s: Annotated[
        float,
        Meta(description="Largest age of a sample, in seconds.", ge=60, le=315_360_000),
    ] = 604_800.0


class EnergySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Power and emissions; without a region or a factor no emissions are reported."""

    region: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,32}\Z")] | None,
        Meta(
            description='Code of the region whose electricity this machine draws, such as "FR"; '
            "the how-to on energy has the table."
        ),
    ] = None
    gco2e_per_kwh: Annotated[
        Annotated[float, Meta(ge=0, le=5000)] | None,
        Meta(
            description="Grams of CO2 equivalent emitted for one kilowatt-hour, in place of the table's; needs "
            "factor_source and factor_date."
        ),
    ] = None
    factor_source: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None, Meta(description="Who published gco2e_per_kwh.")
    ] = None
    factor_date: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9]{4}(-[0-9]{2}){0,2}\Z")] | None,
        Meta(description="Year, month or day that gco2e_per_kwh holds for, such as 2024 or 2024-06-30."),
    ] = None
    factors_file: Annotated[
        Path | None,
        Meta(description="Your own table of factors, in place of the one that comes with fedmon."),
    ] = None
    pue: Annotated[
        float,
        Meta(
            description="Watts of the building per watt of its machines (power usage effectiveness); emissions "
            "are multiplied by it.",
            ge=1,
            le=10,
        ),
    ] = 1.0
    max_zone_watts: Annotated[
        float,
        Meta(
            description="Maximum power of one processor, in watts; it bounds how often its counter can wrap.",
            ge=1,
            le=10_000,
        ),
    ] = 1000.0
    node_power_sensors: Annotated[
        tuple[Annotated[str, Meta(pattern="^[^/]+/.+$")], ...],
        Meta(
            description="Power sensors, as chip/sensor, that together measure this whole machine; used if the "
            "processors have no energy counters."
        ),
    ] = ()

    def __post_init__(self) -> None:
        if self.gco2e_per_kwh is not None and not (self.factor_source and self.factor_date):
            raise SettingsError(
                "energy: gco2e_per_kwh needs factor_source (its publisher) and factor_date (its year or day)"
            )


class PerfSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The program perf, which counts events of processor and kernel."""

    enabled: Annotated[
        bool,
        Meta(description="Count events of processor and kernel with the program perf, of the machine and of jobs."),
    ] = False
    groups: Annotated[
        tuple[PerfGroup, ...],
        Meta(
            description="Groups to count: software (always), cycles, branches, cache, l2, l2cache, l3, l3cache, "
            "flops_sp, flops_dp, memory. More groups mean less counter time for each."
        ),
    ] = ("software", "cycles", "branches", "cache")
    interval_s: Annotated[
        float, Meta(description="Seconds between two readings of the counters by perf.", ge=0.1, le=60)
    ] = 1.0
    command: Annotated[
        str, Meta(description="The program to start, found on PATH or given as an absolute path.", min_length=1)
    ] = "perf"


class RunsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a run. Plans always need approval; no setting changes that."""

    enabled: Annotated[bool, Meta(description="Run plans that the owner approved, for researchers who are obeyed.")] = (
        True
    )
    sandbox: Annotated[
        SandboxLevel,
        Meta(
            description="The weakest confinement in which a plan may run. bubblewrap: separate namespaces; landlock: "
            "no_new_privs, limits, seccomp and Landlock; limits: as landlock, on kernels that have no Landlock. "
            "The strongest that this machine has is used; below this one nothing runs."
        ),
    ] = "landlock"
    python: Annotated[
        Path | None,
        Meta(description="The Python that runs plans, with the packages they can import (default: fedmon's own)."),
    ] = None
    devices: Annotated[
        tuple[str, ...], Meta(description='Device files that plans may use, such as "/dev/nvidia0".')
    ] = ()
    max_jobs: Annotated[int, Meta(description="Jobs that run at a time; more are refused.", ge=1, le=256)] = 2
    max_cpu_s: Annotated[
        float, Meta(description="CPU time of one job, all of its processes together, in seconds.", ge=1, le=31_536_000)
    ] = 3600.0
    max_wall_s: Annotated[float, Meta(description="Wall time of one job, in seconds.", ge=1, le=31_536_000)] = 3600.0
    max_memory_bytes: Annotated[int, Meta(description="Memory of one job, in bytes.", ge=64 * _MIB, le=2**50)] = (
        4 * _GIB
    )
    max_processes: Annotated[
        int, Meta(description="Processes and threads of one job at a time.", ge=1, le=1_000_000)
    ] = 256
    max_tmp_bytes: Annotated[int, Meta(description="Temporary files of one job, in bytes.", ge=_MIB, le=2**50)] = _GIB
    max_output_bytes: Annotated[
        int, Meta(description="The largest result that one job may return, in bytes.", ge=1024, le=64 * _GIB)
    ] = 256 * _MIB
    max_input_bytes: Annotated[
        int, Meta(description="The largest inputs that a researcher may send to one job, in bytes.", ge=0, le=64 * _GIB)
    ] = 256 * _MIB
    trace_bytes: Annotated[
        int, Meta(description="Kept output of a job for each of stdout and stderr, in bytes.", ge=4096, le=_GIB)
    ] = _MIB
    keep_s: Annotated[float, Meta(description="Seconds to keep traces and results after the end of a job.", ge=60)] = (
        2_592_000.0
    )


class ReleaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The release gate: which results of a run leave by themselves, and which wait for the owner."""

    mode: Annotated[
        Literal["auto", "check", "ask"],
        Meta(
            description="How results leave. auto: unchecked; check: one that breaks a rule waits for the owner; ask: "
            "every result waits. A new node gets check; a file without this key means auto."
        ),
    ] = "auto"
    max_bytes: Annotated[
        int, Meta(description="The largest result that leaves by itself, in bytes.", ge=1024, le=64 * _MIB)
    ] = _MIB
    max_numbers_per_row: Annotated[
        float,
        Meta(description="Numbers in a result for each row of its dataset, unless the grant says how many.", ge=0),
    ] = 0.1
    max_text: Annotated[
        int, Meta(description="The longest text in a result, unless the grant names its entry, in characters.", ge=0)
    ] = 64
    min_rows: Annotated[
        int, Meta(description="Of a dataset of fewer rows, or of unknown size, no result leaves by itself.", ge=0)
    ] = 20


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one researcher may ask of the node."""

    requests_per_s: Annotated[
        float,
        Meta(
            description="Requests a second in the long run; those of ten seconds may come at once. Acknowledgements, "
            "leases on metrics and pages of samples do not count.",
            ge=0.1,
            le=1_000_000,
        ),
    ] = 20.0
    changes_per_hour: Annotated[
        int, Meta(description="Requests for approval, for a run and for its stop in one hour.", ge=1, le=10_000_000)
    ] = 600
    undecided_plans: Annotated[
        int, Meta(description="Training plans that wait for your decision at a time.", ge=1, le=100_000)
    ] = 20
    jobs_per_day: Annotated[int, Meta(description="Runs that begin in 24 hours.", ge=1, le=10_000_000)] = 5_000
    kept_bytes: Annotated[
        int,
        Meta(
            description="Bytes of plans, results, traces and waiting messages that the node keeps; above it no plan "
            "and no run is taken in.",
            ge=_MIB,
            le=2**50,
        ),
    ] = 2 * _GIB
    audit_bytes_per_day: Annotated[
        int, Meta(description="Bytes of lines in the audit in 24 hours.", ge=65_536, le=2**50)
    ] = 64 * _MIB


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


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to prove who we are to a metrics store, whose URL is an argument of `record`."""

    token_file: Annotated[
        Path | None, Meta(description="File that holds the store's token on one line and that only we can read (0600).")
    ] = None
    ca_file: Annotated[
        Path | None, Meta(description="Certificates that the store's own must come from; public ones when absent.")
    ] = None
    tenant: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9]{1,10}(:[0-9]{1,10})?\Z")] | None,
        Meta(description="Tenant of a VictoriaMetrics cluster, ACCOUNT or ACCOUNT:PROJECT; absent for a single store."),
    ] = None

    def token(self) -> str | None:
        """Read the token from its file. Raises SettingsError when others could read it too."""
        return read_secret(self.token_file, what="token file") if self.token_file else None


class PartySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who a party is, and how it speaks to the others."""

    id: str
    broker: BrokerSettings
    wire: Annotated[Wire, Meta(description="Wire: fedmon, or fedbiomed4 to talk to programs of Fed-BioMed 4.4.")] = (
        "fedmon"
    )
    strict_identity: Annotated[
        bool | None,
        Meta(
            description="Refuse messages without a sender in their topic; a node also refuses a directed command that "
            "does not name it. Default: on if the settings name a broker user or certificate, except with the wire "
            "fedbiomed4, whose topics name no sender."
        ),
    ] = None

    def __post_init__(self) -> None:
        try:
            checked_id(self.id, what=f"{'node' if isinstance(self, NodeSettings) else 'researcher'}.id")
        except ValueError as error:
            raise SettingsError(str(error)) from None
        if self.wire == "fedbiomed4" and self.strict_identity:
            raise SettingsError(
                'strict_identity = true does not go with wire = "fedbiomed4", whose topics name no sender; take one '
                "away"
            )

    @property
    def identity_is_strict(self) -> bool:
        """Whether messages without a sender in their topic are refused."""
        if self.wire == "fedbiomed4" or self.strict_identity is not None:
            return bool(self.strict_identity)
        # A broker that is told who we are can hold every party to its own name.
        return self.broker.username is not None or self.broker.cert_file is not None


class NodeSettings(PartySettings, frozen=True, kw_only=True):
    """Everything a node is told at its start."""

    id: Annotated[str, Meta(description="Name of this node: 1 to 64 letters, digits, '_' or '-'.")]
    monitoring_topic: Annotated[
        Literal["node", "flat"],
        Meta(
            description="Publish metrics on general/monitoring/NODE_ID (node) or on general/monitoring itself (flat)."
        ),
    ] = "node"
    default_plans_dir: Annotated[
        Path | None,
        Meta(description="Folder of training plans (*.py) of the owner; each is pending until the owner approves it."),
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
    release: ReleaseSettings = ReleaseSettings()
    quota: QuotaSettings = QuotaSettings()
    plugins: Mapping[str, PluginSettings] = {}
    repository: RepositorySettings = RepositorySettings()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wire == "fedbiomed4" and self.monitoring_topic == "flat":
            raise SettingsError(
                'node: monitoring_topic = "flat" does not go with wire = "fedbiomed4": programs of Fed-BioMed read '
                'general/monitoring and stop at our samples; use "node"'
            )


class ResearcherSettings(PartySettings, frozen=True, kw_only=True):
    """Everything a researcher's program is told at its start."""

    id: Annotated[str, Meta(description="Name of this researcher; made once and kept in the folder when absent here.")]
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
    store: StoreSettings = StoreSettings()
