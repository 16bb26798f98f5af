"""The topology that the keywords of a controller ask for, and the callbacks for its nodes and edges."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedmon.experiment.document.description import Nid
from fedmon.experiment.errors import InvalidExperimentError
from fedmon.experiment.topology import NetGraph


def topology_asked(options: Mapping[str, Any]) -> NetGraph | None:
    """Return the topology that keywords ask for. Raises InvalidExperimentError for a keyword that nobody knows."""
    if not options:
        return None
    known = list(inspect.signature(NetGraph).parameters)
    for name in options:
        if name not in known:
            raise InvalidExperimentError(f"there is no keyword {name!r}: those of a topology are {', '.join(known)}")
    return NetGraph(**options)


def call_back(
    ec: object,
    netgraph: NetGraph,
    add_node: Callable[[Any, Nid], object] | None,
    add_edge: Callable[[Any, Nid, Nid], object] | None,
) -> None:
    """Call back for each node, and then for each edge."""
    if add_node is not None:
        for nid in netgraph.nodes():
            add_node(ec, nid)
    if add_edge is not None:
        for nid1, nid2 in netgraph.edges():
            add_edge(ec, nid1, nid2)
