"""A DAG of Python functions: four readers, two sums, one total: python function_dag.py."""

from fedmon.experiment import ExperimentController


def read(number: int) -> list[int]:
    """Return the numbers of one source."""
    return list(range(number, number + 10))


def main() -> int:
    """Run each function as soon as its inputs are there, and return the total."""
    with ExperimentController("function-dag") as ec:
        readers = [ec.call(read, number) for number in range(4)]
        sums = [
            ec.call(lambda pair=pair: sum(sum(ec.result(reader)) for reader in pair), after=pair)
            for pair in (readers[:2], readers[2:])
        ]
        total = ec.call(lambda: sum(ec.result(each) for each in sums), after=sums)
        ec.deploy()
        if not ec.wait_finished([total], timeout=60):
            raise SystemExit(str(ec.explain(total)))
        return ec.result(total)


if __name__ == "__main__":
    print(main())
