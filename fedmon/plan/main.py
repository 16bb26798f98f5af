"""The first file of a plan's process: ``PYTHON -I -S -B -X utf8 RUNTIME/fedmon/plan/main.py``.

Descriptor 3 holds the job as one JSON object, to be read whole: ``job_id``, ``node_id``, ``name`` (of the plan),
``arguments``, ``dataset`` (null, or ``dataset_id``, ``name``, ``data_type``, ``tags``, ``path``, ``shape`` and
``dtypes``), ``inputs_format`` (null, "json" or "npz"), ``output_bytes``, and ``path``, where packages are found.
Descriptor 4 holds the plan's source, 5 the inputs (may be missing where there are none), 6 is the pipe for frames (see
frames.py). Standard input is empty; the standard streams are the plan's to print to.

No ``site`` is imported, and no other module that a plan does not use, because each takes time.
"""

import sys

if __name__ == "__main__":
    RUNTIME = __file__.rpartition("/fedmon/plan/")[0]
    sys.path.append(RUNTIME)
    from fedmon.plan.process import main

    main(RUNTIME)
