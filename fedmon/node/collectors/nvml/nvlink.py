"""The NVLinks of a GPU: state and bytes of each, and the errors of all."""

from __future__ import annotations

from collections.abc import Iterator

from fedmon.node.collectors.nvml.library import Meaning, RefusedError, number
from fedmon.node.collectors.nvml.query import Gpu, Part, Query, Value, ask, field

_WIDE = 2**64 - 2

LINK_ERRORS = {
    "replay": "NVML_NVLINK_ERROR_DL_REPLAY",
    "recovery": "NVML_NVLINK_ERROR_DL_RECOVERY",
    "crc_flit": "NVML_NVLINK_ERROR_DL_CRC_FLIT",
    "crc_data": "NVML_NVLINK_ERROR_DL_CRC_DATA",
    "ecc_data": "NVML_NVLINK_ERROR_DL_ECC_DATA",
}
MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of nvml.h 13; a card that has fewer refuses the rest once and is not asked for them again."""


def _link(link: int) -> Iterator[Query]:
    """Ask for one NVLink: state and bytes."""
    label = (("link", str(link)),)
    yield ask("nvmlDeviceGetNvLinkState", link, parts=(Part("gpu_nvlink_active", labels=label),))
    for word, kibibytes, counted in (
        ("transmit", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES"),
        ("receive", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES"),
    ):
        metric = f"gpu_nvlink_{word}_bytes_total"
        yield field(
            kibibytes,
            Part(metric, times=1024, most=_WIDE, labels=label),
            scope=link,
            otherwise=field(counted, Part(metric, most=_WIDE, labels=label), scope=link),
        )


def _link_errors(name: str, constant: str) -> Query:
    """Ask every link for one kind of error; a card with 18 links would else have 90 series that are nearly always 0."""
    total, single, call = "gpu_nvlink_errors_total", "gpu_nvlink_link_errors_total", "nvmlDeviceGetNvLinkErrorCounter"
    shown, kind = f"{call}({constant})", (("error", name),)

    def read(gpu: Gpu) -> Iterator[Value]:
        counts: dict[int, float] = {}
        refusal: RefusedError | None = None
        for link in range(MAX_LINKS):
            try:
                found = number(gpu.nvml.call(call, gpu.handle, link, constant), call=shown)
            except RefusedError as error:
                refusal = error
                if error.meaning is Meaning.NEVER:
                    continue
                if error.meaning is Meaning.DOUBTFUL:
                    break  # the card has no more links
                raise
            if found is None:
                yield Value(total, kind, None)
                return
            counts[link] = found
        if refusal is not None and not counts:
            raise refusal
        yield Value(total, kind, sum(counts.values()))
        for link, count in counts.items():
            if count:
                yield Value(single, (("link", str(link)), *kind), count)

    return Query(shown, ((total, kind), (single, None)), read)


QUERIES: tuple[Query, ...] = (
    *(query for link in range(MAX_LINKS) for query in _link(link)),
    *(_link_errors(name, constant) for name, constant in LINK_ERRORS.items()),
)
"""Asked every 10 s of each link that the card has."""
