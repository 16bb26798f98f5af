"""`Responses`: the replies of nodes, each once, as the historic `Requests` returns them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from fedmon.researcher.asking.tables import frame


class Responses:
    """A list of replies without repeats, in the order of arrival."""

    def __init__(self, data: list[Any] | dict[str, Any]) -> None:
        self.set_data([data] if isinstance(data, dict) else data)

    def data(self) -> list[Any]:
        """Return the replies as a list."""
        return self._data

    def set_data(self, data: list[Any]) -> list[Any]:
        """Replace all replies and return them."""
        self._data: list[Any] = []
        self._known: set[Hashable] = set()
        self._place_of_node: dict[str, int] = {}
        return self._added(list(data))

    def append(self, response: list[Any] | dict[str, Any] | Responses) -> list[Any]:
        """Add one reply, a list of them, or other responses, and return all; repeats are left out."""
        parts = response if isinstance(response, list) else [response]
        return self._added([reply for part in parts for reply in (part if isinstance(part, Responses) else [part])])

    def dataframe(self) -> Any:
        """Return a pandas DataFrame with one row a reply. Raises NoDataframeError where pandas is not installed."""
        return frame(self._data, instead="data()")

    def get_index_from_node_id(self, node_id: str) -> int | None:
        """Return the index of the latest reply of a node, None when there is none."""
        return self._place_of_node.get(node_id)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, item: int) -> Any:
        return self._data[item]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data)

    def __repr__(self) -> str:
        return repr(self._data)

    def _added(self, replies: Iterable[Any]) -> list[Any]:
        for reply in replies:
            token = _token(reply)
            if token in self._known:
                continue
            self._known.add(token)
            node_id = reply.get("node_id") if isinstance(reply, dict) else None
            if isinstance(node_id, str):
                self._place_of_node[node_id] = len(self._data)
            self._data.append(reply)
        return self._data


def _token(value: Any) -> Hashable:
    """Return something hashable that equals that of another value exactly when the values are equal."""
    if isinstance(value, dict):
        return dict, frozenset((key, _token(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_token, value))
    if isinstance(value, Hashable):
        return value
    # Scripts add replies of their own, with arrays: a value that cannot be hashed equals only itself.
    return type(value), id(value)
