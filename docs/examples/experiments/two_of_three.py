"""Two of three hospitals suffice: python two_of_three.py BROKER PLAN, with `fedmon demo --keep` beside it.

A hospital that does not answer within ten seconds is left out. The plan counts as approved once two owners approved it;
a third that is silent or refuses blocks nothing. A number of the pooled result starts a command.
"""

import sys

import fedmon
from fedmon.experiment import ExperimentController, Metric

HOSPITALS = ["hospital-north", "hospital-east", "hospital-south"]
ARGS = {"task": "describe", "columns": ["worst_radius"], "outcome": "diagnosis", "positive": "M"}


def main(broker: str, plan_file: str) -> None:
    """Print where the plan ran, the number of pooled rows, and the output of the command."""
    with fedmon.Federation(broker) as fed, ExperimentController("two-of-three", federation=fed) as ec:
        optional = {"critical": False, "timeouts": {"deploy": 10.0}}
        nodes = [ec.register_resource("fedmon::Node", nodeId=name, **optional) for name in HOSPITALS]
        data = ec.register_resource("fedmon::Dataset", tags=["breast-cancer"], connectedTo=nodes)
        plan = ec.register_resource("fedmon::TrainingPlan", plan=plan_file, atLeast=2, connectedTo=nodes)
        job = ec.register_resource("fedmon::Job", args=ARGS, atLeast=2, connectedTo=[plan, data])
        pooled = ec.register_resource("fedmon::Aggregator", function="weighted-mean", connectedTo=job)
        command = ec.register_resource("local::Process", command=["echo", "enough rows"])
        enough = Metric(name="rows", comparison=">", value=100)
        ec.register_condition(command, "START", pooled, metric=enough)
        ec.deploy()
        if not ec.wait_finished([pooled, command], timeout=120):
            raise SystemExit(str(ec.explain(pooled)))
        print("ran on", ec.get(job, "ranOn"))
        print("rows", ec.get_resource(pooled).result["rows"])
        print(ec.trace(command, "stdout"), end="")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
