"""What Intel's micro-architectures have in common.

Source of codes: Intel 64 and IA-32 Architectures Software Developer's Manual volume 3B, chapter "Performance
Monitoring" (architectural events 0xC0/0x00, 0x2E/0x4F, 0x2E/0x41), and Intel's event lists as the Linux kernel keeps
them (tools/perf/pmu-events/arch/x86). Source of formulas: the performance groups of LIKWID 5.2. A line is 64 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedmon.node.perf.event import Counter, Derived, Event, Group

LISTS = "Intel SDM volume 3B and the event lists in Linux tools/perf/pmu-events/arch/x86"
FORMULAS = "formulas after the groups of LIKWID 5.2"


def core(name: str, event: int, umask: int) -> Event:
    """Make an event that a core counts."""
    return Event(name=name, pmu="cpu", config=f"event={event:#04x},umask={umask:#04x}")


INSTRUCTIONS = core("inst_retired.any_p", 0xC0, 0x00)


def traffic(topic: str, *lines: Event) -> Group:
    """Make the group that counts the lines moved between two levels of cache."""
    total = " + ".join(event.variable for event in lines)
    return Group(
        name=topic,
        events=lines,
        derived=(
            Derived(
                metric=f"perf_{topic}_bandwidth_bytes_per_second", formula=f"64 * ({total}) / seconds", topic=topic
            ),
        ),
    )


def requests(level: str, references: Event, misses: Event) -> Group:
    """Make the group that counts requests to one level of cache, and those that missed it."""
    topic, asked, missed = f"{level}cache", references.variable, misses.variable
    per_instruction = INSTRUCTIONS.variable
    return Group(
        name=topic,
        events=(INSTRUCTIONS, references, misses),
        derived=(
            Derived(
                metric=f"perf_{level}_requests_per_instruction", formula=f"{asked} / {per_instruction}", topic=topic
            ),
            Derived(
                metric=f"perf_{level}_misses_per_instruction", formula=f"{missed} / {per_instruction}", topic=topic
            ),
            Derived(metric=f"perf_{level}_miss_ratio", formula=f"{missed} / {asked}", topic=topic),
        ),
    )


def last_level() -> Group:
    """Make the group of the last level of cache, which is the third here; its two events are architectural."""
    return requests("l3", core("longest_lat_cache.reference", 0x2E, 0x4F), core("longest_lat_cache.miss", 0x2E, 0x41))


def flops(precision: str, scalar: Event, packed: Iterable[tuple[int, Event]]) -> Group:
    """Make the group of one precision from the scalar event and the packed ones with their numbers in one register."""
    topic = {"single": "flops_sp", "double": "flops_dp"}[precision]
    wide = tuple(packed)
    operations = " + ".join(f"{count} * {event.variable}" for count, event in wide)
    vectors = " + ".join(event.variable for _count, event in wide)
    return Group(
        name=topic,
        events=(scalar, *(event for _count, event in wide)),
        derived=(
            Derived(
                metric="perf_flops_per_second",
                formula=f"({scalar.variable} + {operations}) / seconds",
                topic=topic,
                labels={"precision": precision},
            ),
            Derived(
                metric="perf_vectorization_ratio",
                formula=f"({vectors}) / ({scalar.variable} + {vectors})",
                topic=topic,
                labels={"precision": precision},
            ),
        ),
    )


def fp_arith(*widths: int) -> tuple[Group, Group]:
    """Make both groups from FP_ARITH_INST_RETIRED (0xC7) for registers of these widths in bits.

    Its umasks are 01 scalar double, 02 scalar single, then double and single of 128, 256 and 512 bits in turn. A fused
    multiply-add counts twice, so that one count stands for one operation on each number.
    """

    def packed(width: int, precision: str, umask: int) -> Event:
        return core(f"fp_arith_inst_retired.{width}b_packed_{precision}", 0xC7, umask)

    double = {128: 0x04, 256: 0x10, 512: 0x40}
    return (
        flops(
            "single",
            core("fp_arith_inst_retired.scalar_single", 0xC7, 0x02),
            [(width // 32, packed(width, "single", double[width] << 1)) for width in widths],
        ),
        flops(
            "double",
            core("fp_arith_inst_retired.scalar_double", 0xC7, 0x01),
            [(width // 64, packed(width, "double", double[width])) for width in widths],
        ),
    )


def _memory(name: str, reads: Event, writes: Event) -> Group:
    return Group(
        name=name,
        events=(reads, writes),
        derived=(
            Derived(
                metric="perf_memory_bandwidth_bytes_per_second",
                formula=f"64 * ({reads.variable} + {writes.variable}) / seconds",
                topic="memory",
            ),
        ),
        together=False,  # perf opens one event per memory controller, and a group cannot span controllers
    )


def server_memory(reads: int = 0x03, writes: int = 0x0C) -> Group:
    """Make the group of a server's memory controllers: reads and writes of a line (CAS_COUNT, event 0x04)."""

    def cas(name: str, umask: int) -> Event:
        config = f"event=0x04,umask={umask:#04x}"
        return Event(name=name, pmu="uncore_imc", config=config, counter=Counter.UNCORE)

    return _memory("memory_server", cas("unc_m_cas_count.rd", reads), cas("unc_m_cas_count.wr", writes))


def client_memory() -> Group:
    """Make the group of a client's memory controller, in the kernel's own words for it.

    Perf prints MiB, which are counted as lines again. Source: Linux arch/x86/events/intel/uncore_snb.c.
    """

    def line(name: str) -> Event:
        return Event(name=name, pmu="uncore_imc", config=name, counter=Counter.UNCORE)

    return _memory("memory_client", line("data_reads"), line("data_writes"))
