"""`Responses`: a list of replies without repeats."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.researcher.asking.tables import NoDataframeError
from fedmon.researcher.historic.responses import Responses


def pong(node_id: str, sequence: int = 0) -> dict[str, Any]:
    return {"command": "pong", "node_id": node_id, "researcher_id": "r", "success": True, "sequence": sequence}


def test_repeats_are_left_out_when_made_and_when_appended() -> None:
    responses = Responses([pong("a"), pong("b"), pong("a")])

    returned = responses.append([pong("b"), pong("c")])

    assert [pong("a"), pong("b"), pong("c")] == returned == responses.data() == list(responses)


def test_one_reply_a_list_and_other_responses_can_be_appended() -> None:
    responses = Responses(pong("a"))

    responses.append(pong("b"))
    responses.append(Responses([pong("b"), pong("c")]))
    responses.append([Responses(pong("d")), pong("e")])
    responses.append(responses)

    assert [pong(node) for node in "abcde"] == responses.data()


def test_replies_are_equal_as_python_says_even_when_deeply_nested() -> None:
    responses = Responses([{"shape": [1, {"x": [True]}]}, {"shape": [1.0, {"x": [1]}]}, {"shape": [1, {"x": [2]}]}])

    assert len(responses) == 2


def test_length_index_and_the_place_of_a_node_are_known() -> None:
    responses = Responses([pong("a"), pong("b", 1), pong("b", 2)])

    assert len(responses) == 3
    assert pong("b", 2) == responses[2] == responses[-1]
    assert responses.get_index_from_node_id("a") == 0
    assert responses.get_index_from_node_id("b") == 2
    assert responses.get_index_from_node_id("c") is None


def test_set_data_replaces_everything() -> None:
    responses = Responses([pong("a")])

    assert [pong("b")] == responses.set_data([pong("b")])
    assert responses.get_index_from_node_id("a") is None


@pytest.mark.parametrize("wrong", ["text", 3, None, ("a",)])
def test_a_wrong_type_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=type(wrong).__name__):
        Responses(wrong)
    with pytest.raises(InvalidInputError, match=type(wrong).__name__):
        Responses([]).append(wrong)
    with pytest.raises(InvalidInputError, match=type(wrong).__name__):
        Responses([]).set_data(wrong)


def test_five_thousand_replies_are_joined_in_less_than_half_a_second() -> None:
    replies = [pong(f"node-{number % 100}", number) for number in range(5_000)]

    started = time.thread_time()
    responses = Responses(replies)
    responses.append(replies)
    cpu_s = time.thread_time() - started

    assert len(responses) == 5_000
    assert cpu_s < 0.5


def test_a_dataframe_is_made_of_the_replies(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("class DataFrame(list): pass\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from fedmon.researcher.historic.responses import Responses\n"
        "frame = Responses([{'node_id': 'a'}, {'node_id': 'b'}]).dataframe()\n"
        "print(type(frame).__name__, *(row['node_id'] for row in frame))\n"
    )

    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert output == "DataFrame a b\n"


def test_without_pandas_the_error_says_what_to_do_and_nothing_else_needs_it() -> None:
    program = (
        "import sys; sys.modules['pandas'] = None\n"
        "from fedmon.researcher.asking.tables import NoDataframeError\n"
        "from fedmon.researcher.historic.responses import Responses\n"
        "responses = Responses([{'node_id': 'a'}])\n"
        "try: responses.dataframe()\n"
        "except NoDataframeError as error: print(error)\n"
    )

    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert "pip install pandas" in output
    assert issubclass(NoDataframeError, Exception)
