"""Watch the load of every node for a while, and say who is busiest: python watch_load.py [seconds]."""

import sys
import time

import fedmon


def main(seconds: float) -> None:
    loads: dict[str, float] = {}
    with fedmon.Federation() as fed, fed.monitor(interval_s=0.5, metrics=["host_load1"]) as watch:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            sample = watch.next(timeout_s=left)
            if sample is not None and (load := sample.values.get("host_load1")) is not None:
                loads[sample.node_id] = load
        if not loads:
            sys.exit(f"no sample came: {fed.nodes()}")
    busiest = max(loads, key=lambda node: loads[node])
    print(f"{busiest} is busiest: load {loads[busiest]:.2f}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
