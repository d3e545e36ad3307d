"""Prints the memory that kernels or primitives announced and took: `peak_of_kernel.py RUNTIME LIST`.

LIST holds a name, the parameters and those of a small run, for each. Each has a process of its own, so that
nothing is left from another one, forked as ranks are: the framework has been imported and has done nothing.
It is started by the small run, so that its own programs are not counted.
"""

import json
import os
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


def peak_of(name: str, given: dict[str, object], small: dict[str, object]) -> dict[str, int]:
    run(name, {**given, **small})
    if not reset_peak():
        sys.exit("the kernel does not reset peaks")
    before = read_memory()["rss_bytes"]
    run(name, given)
    return {"taken": read_memory()["peak_rss_bytes"] - before, "announced": announced[-1]}


if __name__ == "__main__":
    real = kernel_job.announced_bytes
    kernel_job.announced_bytes = lambda *args: note_announced(real(*args))
    PrimitiveWorkload.lack_of_memory = noted_lack  # type: ignore[method-assign, assignment]
    find_runtime(sys.argv[1]).warm()
    for label, given, small in json.loads(sys.argv[2]):
        pid = os.fork()
        if pid == 0:
            print(json.dumps([label, peak_of(sys.argv[1], given, small)]), flush=True)
            sys.exit()
        if os.waitpid(pid, 0)[1]:
            sys.exit(f"{label} failed")
