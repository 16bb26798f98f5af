"""`Responses`: a list of replies without repeats."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmon.researcher.historic.responses import Responses


def pong(node_id: str, sequence: int = 0) -> dict[str, Any]:
    return {"command": "pong", "node_id": node_id, "researcher_id": "r", "success": True, "sequence": sequence}


def test_replies_lists_and_other_responses_are_joined_without_repeats() -> None:
    responses = Responses([pong("a"), pong("b"), pong("a")])

    returned = responses.append([pong("b"), pong("c")])
    responses.append(pong("d"))
    responses.append([Responses(pong("d")), pong("e")])
    responses.append(responses)

    assert [pong(node) for node in "abcde"] == returned == responses.data() == list(responses)


def test_replies_are_equal_as_python_says_even_when_deeply_nested() -> None:
    replies = [{"shape": [1, {"x": [True]}]}, {"shape": [1.0, {"x": [1]}]}, {"shape": [1, {"x": [2]}]}]
    responses = Responses(data=replies)

    assert len(responses) == 2
    assert repr(responses) == repr([replies[0], replies[2]])


def test_replies_of_a_script_may_hold_arrays_which_equal_only_themselves() -> None:
    trained = [{"node_id": "a", "params": {"w": np.ones(2)}} for _ in range(2)]

    assert len(Responses([*trained, trained[0]])) == 2


def test_length_index_and_the_place_of_a_node_are_known_and_replaced() -> None:
    responses = Responses([pong("a"), pong("b", 1), pong("b", 2)])

    assert len(responses) == 3
    assert pong("b", 2) == responses[2] == responses[-1]
    assert [responses.get_index_from_node_id(node) for node in "abc"] == [0, 2, None]
    assert responses.set_data([pong("b")]) == [pong("b")]
    assert responses.get_index_from_node_id("a") is None


def test_five_thousand_replies_are_joined_in_less_than_half_a_second() -> None:
    replies = [pong(f"node-{number % 100}", number) for number in range(5_000)]

    started = time.thread_time()
    responses = Responses(replies)
    responses.append(replies)
    cpu_s = time.thread_time() - started

    assert len(responses) == 5_000
    assert cpu_s < 0.5


@pytest.mark.parametrize(
    ("pandas", "said"),
    [("class DataFrame(list): pass", "DataFrame a b"), ("raise ImportError", "pip install pandas")],
    ids=["pandas", "no pandas"],
)
def test_a_data_frame_needs_pandas_and_nothing_else_does(tmp_path: Path, pandas: str, said: str) -> None:
    (tmp_path / "pandas.py").write_text(f"{pandas}\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from fedmon.researcher.asking.tables import NoDataframeError\n"
        "from fedmon.researcher.historic.responses import Responses\n"
        "responses = Responses([{'node_id': 'a'}, {'node_id': 'b'}])\n"
        "try: frame = responses.dataframe()\n"
        "except NoDataframeError as error: print(error)\n"
        "else: print(type(frame).__name__, *(row['node_id'] for row in frame))\n"
    )

    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said in output
