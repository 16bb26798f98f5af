"""One hospital's part of a logistic regression; it returns sums over all of its rows. Needs numpy."""

from typing import Any

import numpy as np

from fedmon import TrainingPlan

MINIMUM_ROWS = 50  # sums over few rows say too much about each


class LogisticRegression(TrainingPlan):
    """Take part in one round: describe the columns, or say how the model should change."""

    arguments = {
        "task": ["describe", "step"],
        "round": range(1, 1_001),
        "columns": [str],
        "outcome": str,
        "positive": str,
    }
    scalars = ("loss", "accuracy")
    values = 1_000  # of ten columns: 132 of gradient and curvature, and three more

    def run(self, context: Any) -> dict[str, Any]:
        """Read the table and do the ``arguments["task"]``: "describe" or "step".

        ``arguments["columns"]`` are the features; ``outcome`` is a column, and ``positive`` its value where the
        answer is yes. Rows that lack a value are left out.
        """
        table, arguments = context.dataset.columns(), context.arguments
        features = np.column_stack([table[name] for name in arguments["columns"]]).astype(float)
        complete = np.isfinite(features).all(axis=1)
        features, outcome = features[complete], table[arguments["outcome"]][complete] == arguments["positive"]
        if len(features) < MINIMUM_ROWS:
            raise ValueError(f"fewer than {MINIMUM_ROWS} complete rows are here, so nothing leaves")
        if arguments["task"] == "describe":
            return self._described(features)
        return self._step(context, features, outcome.astype(float))

    @staticmethod
    def _described(features: Any) -> dict[str, Any]:
        return {"rows": len(features), "mean": features.mean(axis=0), "square": (features**2).mean(axis=0)}

    @staticmethod
    def _step(context: Any, features: Any, outcome: Any) -> dict[str, Any]:
        """Return loss, accuracy, gradient and curvature of the model that came in; all are means over our rows."""
        inputs = context.inputs
        design = np.column_stack([np.ones(len(features)), (features - inputs["center"]) / inputs["scale"]])
        score = design @ inputs["weights"]
        chance = 0.5 * (1.0 + np.tanh(0.5 * score))  # the logistic function, which overflows nowhere in this form
        loss = float(np.mean(np.logaddexp(0.0, score) - outcome * score))
        accuracy = float(np.mean((score > 0) == (outcome > 0)))
        context.report(loss=loss, accuracy=accuracy, step=context.arguments["round"])
        return {
            "rows": len(design),
            "loss": loss,
            "accuracy": accuracy,
            "gradient": design.T @ (chance - outcome) / len(design),
            "curvature": (design * (chance * (1.0 - chance))[:, None]).T @ design / len(design),
        }
