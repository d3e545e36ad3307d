"""Compare the ceilings of `corewise doctor --ceilings` with a C triad and the best BLAS called from C.

Each round measures our ceilings, then the C programs of kernels_cpu.py on the same CPUs and threads. On a
machine with only torch and numpy, the job behind the ceilings runs directly, without warm parents. The
ceilings of a GPU are shown too.

  python benchmarks/ceilings.py --out ceilings.json
"""

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_runs import SOURCE, Side, describe_machine, find_best_s, prepare_kernel_job
from kernels_cpu import GEMM, LETTER, REAL, TRIAD, compile_program, find_blas_libraries

from corewise.measured.workloads.kernels.stream import read_last_level_cache_bytes

HERE = Path(__file__).resolve()
CONTROL_SIDE = ("typer", "pydantic", "yaml", "psutil")
LIMIT_S = 60.0
# Steps of each C program in a round.
STEPS = {"triad": 10, "product float64": 5, "product float32": 5}
# GB/s or Gflop/s by name: "triad", "product float32".
Figures = dict[str, float]


def run_doctor(threads: int, folder: Path) -> tuple[Figures, float, dict[str, Any]]:
    """Return our figures for this number of threads, the seconds of the whole command, and its output."""
    env = {**os.environ, "XDG_CACHE_HOME": str(folder), "PYTHONPATH": str(SOURCE)}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "corewise", "doctor", "--ceilings", "--json"],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    took_s = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    summary = json.loads(done.stdout)["ceilings"]
    found = {}
    for each in (*summary["bandwidth"], *summary["peak"]):
        if each["device"] == "cpu" and each["threads"] == threads and each["placement"] == "compact":
            found[_name_figure(each)] = each.get("gbyte_per_s") or each["gflop_per_s"]
    return found, took_s, summary


def run_job(device: str, threads: int, probe_s: float = 0.03, num_steps: int = 10) -> Figures:
    """Run the job of the ranks in this process and return its figures."""
    size = 2**30 if device == "cuda" else max(2**26, 4 * (read_last_level_cache_bytes() or 0))
    args = {"array_bytes": size, "products": True, "probe_s": probe_s}
    job: Any = prepare_kernel_job("ceilings", "torch", "float32", threads, args, device=device)
    job.step()
    # Reading the facts discards the samples so far.
    job.read_facts()
    for _ in range(num_steps):
        job.step()
    summary = job.collect_sampled_facts()
    for note in summary["ceiling_notes"]:
        print(f"  {device}: {note}")
    return {_name_figure(each): each["best"] for each in summary["figures"]}


def _name_figure(figure: dict[str, Any]) -> str:
    return f"product {figure['dtype']}" if figure["kind"] == "product" else str(figure["kind"])


def run_job_in_process(device: str, threads: int, env: dict[str, str]) -> Figures:
    """Run `run_job` in a process that has loaded nothing else."""
    command = [sys.executable, str(HERE), "--job", device, str(threads)]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def start_c_sides(folder: Path, threads: int, env: dict[str, str], size: int) -> dict[str, list[tuple[float, Side]]]:
    """Start the C programs for each of our figures, with the work of one step."""
    num_bytes = max(2**26, 4 * (read_last_level_cache_bytes() or 0))
    triad = Side("C triad", [str(compile_program(folder, TRIAD, REAL="double")), str(num_bytes)], env)
    found = {"triad": [(3 * num_bytes / 1e9, triad)]}
    for dtype in REAL:
        for name, (path, symbol, whole) in find_blas_libraries([]).items():
            program = compile_program(folder, GEMM, REAL=REAL[dtype], INT=whole)
            command = [str(program), path, symbol.format(LETTER[dtype]), str(size)]
            side = Side(f"C, {name}", command, env)
            found.setdefault(f"product {dtype}", []).append((2 * size**3 / 1e9, side))
    return found


def compare_with_c(ours: Callable[[], Figures], folder: Path, threads: int, rounds: int, size: int) -> dict[str, Any]:
    """Compare our figures with the best of C, round by round."""
    env = dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), str(threads)
    )
    # Programs that wait for their turn must not spin while ours run.
    env["OMP_WAIT_POLICY"] = "passive"
    sides = start_c_sides(folder, threads, env, size)
    mine: list[Figures] = []
    for _ in range(rounds):
        mine.append(ours())
        for name, programs in sides.items():
            for _, side in programs:
                side.turn(STEPS[name])
    rows = {}
    print(f"\n{threads} threads, {rounds} rounds\n{'':18} {'ours':>9} {'best of C':>10} {'ours/C':>7} by round")
    for name, programs in sides.items():
        rates = [max(work / min(side.turns[k]) for work, side in programs) for k in range(rounds)]
        own = [each[name] for each in mine]
        work, best = min(programs, key=lambda pair: find_best_s(pair[1]) / pair[0])
        ratios = [a / b for a, b in zip(own, rates, strict=True)]
        print(
            f"{name:18} {max(own):9.1f} {work / find_best_s(best):10.1f} {max(own) / max(rates):7.3f} "
            f"{statistics.median(ratios):8.3f}  {best.name}"
        )
        rows[name] = {"ours": own, "c": rates, "best_of_c": best.name, "ratio": max(own) / max(rates)}
    for programs in sides.values():
        for _, side in programs:
            side.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=2048, help="of the matrices multiplied from C")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    figures: dict[str, Any] = {"machine": describe_machine(), "num_threads": threads}
    print(figures["machine"])
    whole = all(importlib.util.find_spec(name) for name in CONTROL_SIDE)
    took: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def measure_ours() -> Figures:
            if not whole:
                return run_job_in_process("cpu", threads, {"OMP_NUM_THREADS": str(threads)})
            found, took_s, figures["doctor"] = run_doctor(threads, folder)
            took.append(took_s)
            return found

        if shutil.which("cc") is None:
            print("no C compiler (cc) found: nothing to compare with")
            figures["ours"] = measure_ours()
            print(json.dumps(figures["ours"], indent=1))
        else:
            figures["against_c"] = compare_with_c(measure_ours, folder, threads, args.rounds, args.size)
    if took:
        figures["took_s"] = took
        verdict = "within" if max(took) < LIMIT_S else "BEYOND"
        summary = f"took {min(took):.1f} to {max(took):.1f} s, {verdict} {LIMIT_S:g} s"
        print(f"\n`corewise doctor --ceilings` {summary}")
    else:
        print("\nthe control side is not installed here: the job was run directly, without warm parents")
    import torch

    if torch.cuda.is_available():
        figures["gpu"] = {"name": torch.cuda.get_device_name(), **run_job_in_process("cuda", 1, {})}
        print(json.dumps(figures["gpu"], indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(run_job(sys.argv[2], int(sys.argv[3]))))
    else:
        main()
