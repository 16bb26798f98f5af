"""The federated examples over real nodes with the demo's tables: what they compute is what the pooled rows give."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmon.researcher.federation import Federation
from tests.docs.examples import EXAMPLES, TABLES, column, example, example_environment, numbers, printed
from tests.support.notebooks import run_notebook
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow_docs

EXACT = 1e-12
"""Of sums of the same numbers in another order, relative."""
SAME_MODEL = 1e-9
"""What the regression's example promises."""


@pytest.fixture
def fed(hospitals: str, tmp_path: Path) -> Iterator[Federation]:
    with Federation(hospitals, folder=tmp_path, timeout_s=30.0) as federation:
        wait_until(lambda: set(federation.nodes().online) >= set(TABLES), what="three nodes online")
        yield federation


def test_the_federated_mean_is_that_of_the_pooled_rows(fed: Federation) -> None:
    columns = ["mean_radius", "mean_area", "worst_fractal_dimension"]

    found = example("federated_mean").federated_mean(fed, columns)

    for name in columns:
        pooled = numbers(name)
        assert found[name]["rows"] == len(pooled)
        assert found[name]["mean"] == pytest.approx(pooled.mean(), rel=EXACT)
        assert found[name]["deviation"] == pytest.approx(pooled.std(), rel=EXACT)


def test_the_federated_histogram_is_the_pooled_one_but_for_bins_that_somebody_withheld(fed: Federation) -> None:
    module = example("federated_histogram")
    pooled, _ = np.histogram(numbers("mean_radius"), module.EDGES)
    parts = {name: np.histogram(numbers("mean_radius", name), module.EDGES)[0] for name in TABLES}

    found = module.federated_histogram(fed, "mean_radius", module.EDGES)

    told = [one for one in found if not one["withheld"]]
    assert len(told) >= len(found) // 2
    for index, one in enumerate(found):
        few = {name for name, counts in parts.items() if counts[index] < 5}
        assert few <= set(one["withheld"])
        assert one["count"] == sum(counts[index] for name, counts in parts.items() if name not in one["withheld"])
        if not one["withheld"]:
            assert one["count"] == pooled[index]


def test_a_researcher_cannot_ask_for_smaller_bins_than_the_owner_approved(fed: Federation) -> None:
    module = example("federated_histogram")
    edges = [20.0, 22.0, 24.0, 26.0, 28.0, 30.0]

    found = module.federated_histogram(fed, "mean_radius", edges, minimum=1)

    for name in TABLES:
        counts, _ = np.histogram(numbers("mean_radius", name), edges)
        assert all(name in one["withheld"] for one, count in zip(found, counts, strict=True) if count < 5)


def test_the_federated_logistic_regression_ends_at_the_model_of_the_pooled_rows(hospitals: str, tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    module = example("federated_logistic_regression")
    features = np.column_stack([numbers(name) for name in module.COLUMNS])
    standardised = (features - features.mean(axis=0)) / features.std(axis=0)
    outcome = np.array(column("diagnosis")) == "M"
    pooled = LogisticRegression(C=1 / module.PENALTY, tol=1e-13, max_iter=1000, solver="newton-cholesky")
    pooled.fit(standardised, outcome)

    lines = printed("federated_logistic_regression", folder=tmp_path, url=hospitals)

    rounds = [line for line in lines if line.startswith("round ")]
    weights = [float(line.split(": ")[1]) for line in lines if line.startswith(("intercept: ", "worst_"))]
    assert np.abs(weights - np.array([pooled.intercept_[0], *pooled.coef_[0]])).max() <= SAME_MODEL
    assert "accuracy 62.7%" in rounds[0]
    # The last round begins with the model that the one before made, which is the pooled one already.
    assert f"accuracy {pooled.score(standardised, outcome):.1%}" in rounds[-1]
    assert all(name in rounds[-1] for name in TABLES)


@pytest.mark.parametrize("script", ["federated_mean", "federated_histogram"])
def test_the_script_runs_as_it_stands(script: str, hospitals: str, tmp_path: Path) -> None:
    said = printed(script, folder=tmp_path, url=hospitals)

    assert all(name in " ".join(said) for name in TABLES)


def test_the_notebooks_run_as_they_stand(hospitals: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat

    monkeypatch.setattr(os, "environ", os.environ | example_environment(hospitals, tmp_path))
    # One kernel for all, since a kernel takes as long to start as a notebook to run; each closes what it opened.
    documents = [nbformat.read(path, as_version=4) for path in sorted(EXAMPLES.glob("federated_*.ipynb"))]  # type: ignore[no-untyped-call]  # nbformat's own
    whole = nbformat.v4.new_notebook(cells=[cell for document in documents for cell in document.cells])  # type: ignore[no-untyped-call]

    run_notebook(whole, EXAMPLES)

    outputs: list[Any] = [cell.get("outputs", []) for cell in whole.cells]
    text = json.dumps(outputs)
    assert len(documents) == 3
    assert all(name in text for name in TABLES)
    assert "<table" in text
    assert "accuracy 97.9%" in text
