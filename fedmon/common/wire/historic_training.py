"""The messages of Fed-BioMed 4.4 about training, which nodes of ours do not run: their fields, and nothing else.

Source: the message classes of Fed-BioMed 4.4.0.
"""

from __future__ import annotations

from typing import Any

from fedmon.common.wire.fedbiomed4_messages import Reply, Request


class TrainRequest(Request, frozen=True, kw_only=True, tag="train"):
    """Ask for one round of training."""

    job_id: str
    params_url: str
    training_args: dict[str, Any]
    dataset_id: str
    training: bool
    model_args: dict[str, Any]
    training_plan_url: str
    training_plan_class: str
    secagg_servkey_id: str | None
    secagg_biprime_id: str | None
    secagg_random: float | None
    secagg_clipping_range: int | None
    round: int
    aggregator_args: dict[str, Any]
    aux_var_urls: list[Any] | None


class TrainReply(Reply, frozen=True, kw_only=True, tag="train"):
    """What came of a round."""

    job_id: str
    success: bool
    dataset_id: str
    params_url: str
    timing: dict[str, Any]
    sample_size: int | None
    msg: str


class SecaggDeleteRequest(Request, frozen=True, kw_only=True, tag="secagg-delete"):
    """Ask to forget an element of secure aggregation."""

    secagg_id: str
    sequence: int
    element: int
    job_id: str | None


class SecaggRequest(Request, frozen=True, kw_only=True, tag="secagg"):
    """Ask to set up an element of secure aggregation with these parties."""

    secagg_id: str
    sequence: int
    element: int
    job_id: str | None
    parties: list[Any]


class SecaggReply(Reply, frozen=True, kw_only=True, tag="secagg"):
    """Whether an element of secure aggregation was set up."""

    secagg_id: str
    sequence: int
    success: bool
    msg: str


class SecaggDeleteReply(Reply, frozen=True, kw_only=True, tag="secagg-delete"):
    """Whether an element of secure aggregation was forgotten."""

    secagg_id: str
    sequence: int
    success: bool
    msg: str
