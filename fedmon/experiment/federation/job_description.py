"""The attributes and traces of a `fedmon::Job`."""

from __future__ import annotations

from fedmon.experiment.attributes import Attribute, Flags, Types
from fedmon.experiment.federation.values import CheckedAttribute, inputs, json_object, limits, own, words
from fedmon.experiment.traces import Trace

_OBJECT = 'a JSON object, such as {"rounds": 3}'


def attributes() -> list[Attribute]:
    """Return the attributes."""
    return [
        CheckedAttribute("args", "What the plan finds in context.arguments.", json_object, _OBJECT),
        CheckedAttribute(
            "inputs",
            "What the plan finds in context.inputs.",
            inputs,
            f"{_OBJECT}, or the path of a .json or .npz file, which may hold arrays",
        ),
        Attribute("inputsFrom", "The guid of a fedmon::Aggregator whose result is added to the inputs.", Types.Integer),
        CheckedAttribute(
            "limits",
            "What it may take at most; nodes lower that to their own limits.",
            limits,
            'a JSON object, such as {"wall_s": 60}',
        ),
        CheckedAttribute(
            "tags",
            "The tags of the dataset, where no fedmon::Dataset is connected.",
            words,
            "a list of texts",
            flags=Flags.Design,
        ),
        Attribute(
            "atLeast",
            "On how many of its nodes it must end well for it to be STOPPED; null: on all.",
            Types.Integer,
            Flags.Design,
            range=(1, 100_000),
        ),
        own("jobId", "The id under which nodes know it, once it was started."),
        own("ranOn", "The nodes that were asked to run it, with commas."),
        own("outcome", "How it ended, node by node."),
    ]


def traces() -> list[Trace]:
    """Return the traces."""
    return [
        Trace("stdout", "What the plan printed, where the owners let that leave."),
        Trace("stderr", "What the plan printed to its standard error, where the owners let that leave."),
        Trace("result", "What the plan returned, as JSON by node; arrays by type, shape and, if few, elements."),
        Trace("scalars", "What the plan reported, a line of JSON each."),
    ]
