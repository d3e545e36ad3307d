"""Prints the memory that a kernel or primitive announced and took: `peak_of_kernel.py RUNTIME PARAMS SMALL`.

A process of its own for each, so that nothing is left from another one. The framework is started first by
a small run of the same one, so that its own programs are not counted.
"""

import json
import sys
import tempfile

from corewise.probes.memory import read_memory, reset_peak
from corewise.runtimes import kernel_job
from corewise.runtimes.base import RankContext
from corewise.runtimes.registry import find_runtime
from corewise.workloads.primitives.memory_demand import FREE
from corewise.workloads.primitives.workload import PrimitiveWorkload

announced: list[int] = []


def note_announced(needed_bytes: int) -> int:
    announced.append(needed_bytes)
    return needed_bytes


really_lacking = PrimitiveWorkload.lack_of_memory


def noted_lack(
    self: PrimitiveWorkload,
    params: dict[str, object],
    free_bytes: int,
    there_is: str = FREE,
    factor: float = 1.0,
) -> str | None:
    note_announced(self.needed_bytes(params, factor))
    return really_lacking(self, params, free_bytes, there_is, factor)


def run(runtime_name: str, params: dict[str, object]) -> None:
    runtime = find_runtime(runtime_name)
    runtime.warm()
    runtime.warm_for(params)
    with tempfile.TemporaryDirectory() as folder:
        job = runtime.prepare(params, RankContext(0, 1, folder, 1))
        assert job.check().passed
        for _ in range(3):
            job.step()
        job.facts()
        job.close()


if __name__ == "__main__":
    name, given, small = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    real = kernel_job.announced_bytes
    kernel_job.announced_bytes = lambda *args: note_announced(real(*args))
    PrimitiveWorkload.lack_of_memory = noted_lack  # type: ignore[method-assign, assignment]
    run(name, {**given, **small})
    if not reset_peak():
        sys.exit("the kernel does not reset peaks")
    before = read_memory()["rss_bytes"]
    run(name, given)
    print(json.dumps({"taken": read_memory()["peak_rss_bytes"] - before, "announced": announced[-1]}))
