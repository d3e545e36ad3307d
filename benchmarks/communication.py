"""Messages of the workload `communication` over MPI, compared with a loop in C over the same MPI, interleaved.

Both sides pin each rank to one core and take turns in every round; the order alternates. The bandwidth of a round is
the size over the median time of one operation, one way. Needs mpi4py, and mpicc and mpirun of the MPI that it is built
for.

    python benchmarks/communication.py --rounds 11 --json OUT
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from measuring import compute_quartiles, describe_machine, write_figures

from corewise import process_control
from corewise.measured.parameters import TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, Trial
from corewise.measured.worker.zygote import Zygote

SOURCE = Path(__file__).with_name("osu_style.c")
OPERATIONS = ("point_to_point", "allreduce")
SIZES = (1024, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
SAMPLE_S = 0.4
NUM_RANKS = 2
# The figure asked for holds from this size on.
LARGE_BYTES = 1 << 20


def compile_loop(folder: Path, compiler: str) -> Path:
    """Compile the loop in C."""
    program = folder / "osu_style"
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
    return program


def time_loop(program: Path, mpirun: str, cpus: Sequence[int], operation: str, size_bytes: int) -> float:
    """Return the median seconds of one operation of the loop in C."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    chosen = " ".join(str(cpu) for cpu in cpus)
    pin = f'set -- "$@"; c=$(echo {chosen} | cut -d" " -f$((OMPI_COMM_WORLD_RANK + 1))); exec taskset -c $c "$@"'
    command = [mpirun, *root, "--np", str(len(cpus)), "--host", f"localhost:{len(cpus)}", "--bind-to", "none"]
    command += ["sh", "-c", pin, "sh", str(program), operation, str(size_bytes), str(SAMPLE_S)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0])


def time_workload(
    zygote: Zygote, runtime: str, folder: Path, cpus: Sequence[int], operation: str, size_bytes: int
) -> float:
    """Return the median seconds of one operation of the workload, run as a trial."""
    point = {"workload": "communication", "mode": "infer", "runtime": runtime, "processes": len(cpus), "threads": 1}
    args = {"batch": 1, "collectives": "mpi", "args.operation": operation, "args.size_bytes": size_bytes}
    protocol = Protocol(min_sample_s=SAMPLE_S, max_samples=4000, max_warmup_s=1.0, timeout_s=120.0)
    ranks = tuple(RankPlacement((cpu,)) for cpu in cpus)
    trial = Trial("benchmark", TrialParameters.from_mapping({**point, **args}), protocol, ranks, {}, ())
    out = Path(tempfile.mkdtemp(dir=folder))
    zygote.run(trial, out, time.monotonic_ns())
    results = [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(len(cpus))]
    for result in results:
        if result["status"] != "ok":
            raise SystemExit(f"{operation} of {size_bytes} bytes, rank {result['rank']}: {result['reason']}")
    num_messages = 2 if operation == "point_to_point" else 1
    # The loop in C reports the times of the first rank, too.
    return compute_quartiles(results[0]["samples_s"])[1] / num_messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--runtime", choices=("numpy", "torch"), default="numpy")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--mpicc", default=shutil.which("mpicc.openmpi") or "mpicc")
    parser.add_argument("--mpirun", default=shutil.which("mpirun.openmpi") or "mpirun")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[:NUM_RANKS]
    if len(cpus) < NUM_RANKS:
        raise SystemExit(f"{NUM_RANKS} CPUs are needed, one for each rank")
    process_control.adopt_orphans()
    zygote = Zygote(options.runtime, warm=True)
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = compile_loop(folder, options.mpicc)
        for number in range(options.rounds):
            for operation in options.operations:
                for size_bytes in options.sizes:
                    figure = figures.setdefault(f"{operation} {size_bytes}", {"loop_s": [], "workload_s": []})
                    for side in ("loop_s", "workload_s") if number % 2 == 0 else ("workload_s", "loop_s"):
                        if side == "loop_s":
                            seconds = time_loop(program, options.mpirun, cpus, operation, size_bytes)
                        else:
                            seconds = time_workload(zygote, options.runtime, folder, cpus, operation, size_bytes)
                        figure[side].append(seconds)
    print(describe_machine())
    print(f"{'':28}{'loop in C':>12}{'workload':>12}   bandwidth relative to the loop: median (quartiles of rounds)")
    for label, figure in figures.items():
        operation, size = label.split()
        loop_s, workload_s = (compute_quartiles(figure[side])[1] for side in ("loop_s", "workload_s"))
        pairs = zip(figure["loop_s"], figure["workload_s"], strict=True)
        low, middle, high = compute_quartiles([loop / own for loop, own in pairs])
        asked = " (asked for: 95 %)" if operation == "point_to_point" and int(size) >= LARGE_BYTES else ""
        print(
            f"{label:28}{loop_s * 1e6:9.2f} µs{workload_s * 1e6:9.2f} µs   {middle:.1%} ({low:.1%}-{high:.1%}){asked}"
        )
    write_figures(options.json, runtime=options.runtime, figures=figures)


if __name__ == "__main__":
    main()
