"""Print the estimated and the measured memory of kernels or primitives: `measure_kernel_peaks.py RUNTIME LIST`.

LIST holds a name, the parameters and those of a small run, for each. Each runs in a separate process,
forked like a rank after the framework was imported. The small run starts the framework first, so its code
is not counted.
"""

import json
import os
import sys
import tempfile

from corewise.measured.parameters import TrialParameters
from corewise.measured.probes.memory_use import read_memory, reset_peak
from corewise.measured.runtimes import kernel_job
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.workloads.primitives.memory_demand import FREE
from corewise.measured.workloads.primitives.primitive_workload import PrimitiveWorkload

announced: list[int] = []


def note_announced(needed_bytes: int) -> int:
    announced.append(needed_bytes)
    return needed_bytes


really_lacking = PrimitiveWorkload.explain_memory_shortage


def noted_lack(
    self: PrimitiveWorkload, params: TrialParameters, free_bytes: int, availability: str = FREE, factor: float = 1.0
) -> str | None:
    note_announced(self.estimate_memory_bytes(params, factor))
    return really_lacking(self, params, free_bytes, availability, factor)


def run(runtime_name: str, given: dict[str, object]) -> None:
    params = TrialParameters.from_mapping(given)
    runtime = find_runtime(runtime_name)
    runtime.warm()
    runtime.warm_for(params)
    with tempfile.TemporaryDirectory() as folder:
        job = runtime.prepare(params, RankContext(0, 1, folder, 1))
        assert job.check().passed
        for _ in range(3):
            job.step()
        job.read_facts()
        job.close()


def peak_of(name: str, given: dict[str, object], small: dict[str, object]) -> dict[str, int]:
    run(name, {**given, **small})
    if not reset_peak():
        sys.exit("the kernel does not reset peaks")
    before = read_memory()["rss_bytes"]
    run(name, given)
    return {"taken": read_memory()["peak_rss_bytes"] - before, "announced": announced[-1]}


if __name__ == "__main__":
    real = kernel_job.estimate_peak_bytes
    kernel_job.estimate_peak_bytes = lambda *args: note_announced(real(*args))
    PrimitiveWorkload.explain_memory_shortage = noted_lack  # type: ignore[method-assign, assignment]
    find_runtime(sys.argv[1]).warm()
    for label, given, small in json.loads(sys.argv[2]):
        pid = os.fork()
        if pid == 0:
            print(json.dumps([label, peak_of(sys.argv[1], given, small)]), flush=True)
            sys.exit()
        if os.waitpid(pid, 0)[1]:
            sys.exit(f"{label} failed")
