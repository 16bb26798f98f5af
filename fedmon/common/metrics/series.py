"""The text that names one series: a metric and the labels of one instance of it.

The form is that of OpenMetrics: ``name`` or ``name{label="value",...}``, with backslash, double quote and line feed
escaped in values. Source: OpenMetrics 1.0, section "Text format", ABNF of ``labels`` and ``escaped-string``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
_ESCAPED = re.compile(r'\\([\\"n])')


def series(name: str, /, **labels: str) -> str:
    """Return the text of one series; labels keep the order in which they are given."""
    if not labels:
        return name
    pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}"


def metric_name(text: str) -> str:
    """Return the name of the metric that a series belongs to."""
    return text.partition("{")[0]


def split_series(text: str) -> tuple[str, dict[str, str]]:
    """Return name and labels of a series.

    Raises ValueError when the text is not a series.
    """
    name, brace, rest = text.partition("{")
    if not NAME.fullmatch(name) or (brace and not rest.endswith("}")):
        raise ValueError(f"{text!r} is not the name of a series")
    labels: dict[str, str] = {}
    position, inside = 0, rest[:-1]
    while position < len(inside):
        match = _LABEL.match(inside, position)
        if match is None or match[1] in labels:
            raise ValueError(f"{text!r} is not the name of a series: look at its labels")
        labels[match[1]] = _ESCAPED.sub(_unescape, match[2])
        position = match.end()
    return name, labels


def with_origin(labels: Mapping[str, str], *, node: str, stream: str) -> dict[str, str]:
    """Return labels with those of their origin, before their own ones.

    A label of the same name becomes ``exported_node`` or ``exported_stream``, as Prometheus renames it.
    """
    own = {f"exported_{label}" if label in ("node", "stream") else label: labels[label] for label in labels}
    return {"node": node, "stream": stream, **own}


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
