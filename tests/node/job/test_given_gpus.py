"""Which GPUs a job was given, from the words of its environment."""

from __future__ import annotations

import pytest

from fedmon.node.job.identity import given_gpus, identify

UUID = "GPU-5a1c2b3d-0000-1111-2222-333344445555"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, ("0", "2")),
        ({"CUDA_VISIBLE_DEVICES": UUID}, (UUID,)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"SLURM_JOB_GPUS": "2-4,7", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, ("2", "3", "4", "7")),
        ({"SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0,1"}, ("1",)),
        ({"CUDA_VISIBLE_DEVICES": "../../etc"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,$(reboot)"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0-9999"}, tuple(map(str, range(64)))),
        ({"CUDA_VISIBLE_DEVICES": "9" * 100_000}, None),
    ],
)
def test_gpus_are_those_that_the_environment_names(environ: dict[str, str], expected: tuple[str, ...] | None) -> None:
    assert given_gpus(environ) == expected


def test_a_job_knows_its_gpus_with_and_without_a_scheduler() -> None:
    inside = identify({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "3"}, hostname="n1", pid=9)
    alone = identify({"CUDA_VISIBLE_DEVICES": "1"}, hostname="n1", pid=9)
    untold = identify({"PBS_JOBID": "7.server"}, hostname="n1", pid=9)

    assert (inside.gpus, alone.gpus, untold.gpus) == (("3",), ("1",), None)
