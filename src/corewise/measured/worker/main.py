"""The command line of the measured side: serve the control side, run one trial, or print versions.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Mapping, Optional, Sequence

from corewise import process_control
from corewise.measured.parameters import Binding
from corewise.measured.trial import parse_trial
from corewise.measured.worker.control_pipe import Channel
from corewise.trusted_paths import explain_distrust

PACKAGES = (
    *("torch", "tensorflow", "numpy", "Pillow", "mpi4py", "intel-openmp"),
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"),
)
TENSORFLOW_BUILDS = ("tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "intel-tensorflow")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Parse the command line, run the verb, and return the exit code."""
    parser = argparse.ArgumentParser(prog="worker.pyz", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    serve_args = verbs.add_parser("serve", help="fork ranks on commands from standard input")
    serve_args.add_argument("--runtime", required=True)
    serve_args.add_argument("--cpus", required=True, help="CPUs that this warm parent may use")
    serve_args.add_argument("--cold", action="store_true", help="import the framework in each rank, not here")
    run_args = verbs.add_parser("run", help="run one trial file once, from a cold start")
    run_args.add_argument("trial", type=Path)
    run_args.add_argument("--out", type=Path, required=True, help="folder for the result files")
    count_args = verbs.add_parser("count", help="run steps of the trial on standard input, for instruction counters")
    count_args.add_argument("--steps", type=int, required=True)
    count_args.add_argument("--out", type=Path, required=True, help="folder for the file that says that it is done")
    verbs.add_parser("probe", help="print versions as JSON")
    args = parser.parse_args(argv)
    if args.verb == "probe":
        print(json.dumps(probe()))
        return 0
    if args.verb == "count":
        return count_steps(args.steps, args.out)
    if args.verb == "run":
        return run_by_hand(args.trial, args.out)
    return _serve(args.runtime, [int(c) for c in args.cpus.split(",") if c], not args.cold)


def probe() -> dict[str, object]:
    """Read the versions of the interpreter and its packages without importing them."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "packages": read_package_versions(sys.path),
    }


def read_package_versions(path: Sequence[str]) -> dict[str, str]:
    """Read the versions of installed packages from the metadata in these folders; imports nothing."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        versions.update(_find_first_version(name, (name,), path))
    # Several packages provide the module tensorflow.
    if "tensorflow" not in versions:
        versions.update(_find_first_version("tensorflow", TENSORFLOW_BUILDS, path))
    return versions


def _find_first_version(name: str, packages: Sequence[str], path: Sequence[str]) -> dict[str, str]:
    """Map the name to the version of the first installed package; empty if there is none."""
    for package in packages:
        for distribution in importlib.metadata.distributions(name=package, path=list(path)):
            return {name: distribution.version}
    return {}


def run_by_hand(trial_file: Path, out_dir: Path) -> int:
    """Run a trial whose environment is already set; return 0 if every rank succeeds."""
    from corewise.measured.worker.zygote import Zygote
    from corewise.measured.workloads.custom import is_custom

    asked_at_ns = time.monotonic_ns()
    trial = parse_trial(json.loads(trial_file.read_text(encoding="utf-8")))
    # The file of such a trial names code to run.
    refusal = explain_distrust(trial_file) if is_custom(trial.params.workload) else ""
    if refusal:
        print(f"{trial_file} is not run: {refusal}; copy it to a folder that only you can change", file=sys.stderr)
        return 2
    unset = find_unset_variables(trial.env, os.environ)
    if unset:
        print(
            f"{trial_file}: set these variables first, as `corewise plan` prints them: {' '.join(unset)}",
            file=sys.stderr,
        )
        return 2
    out_dir.mkdir(parents=True, exist_ok=True)
    if trial.params.bind != Binding.NONE:
        os.sched_setaffinity(0, trial.ranks[0].cpus)
    process_control.adopt_orphans()
    zygote = Zygote(trial.params.runtime, warm=trial.protocol.start == "fork")
    leftovers = zygote.run(trial, out_dir, asked_at_ns)
    if leftovers:
        print(f"killed {len(leftovers)} processes that the workload left behind: {', '.join(leftovers)}")
    num_failed = 0
    for rank in range(trial.num_ranks):
        result = json.loads((out_dir / f"rank-{rank}.json").read_text(encoding="utf-8"))
        samples = sorted(result["samples_s"])
        outcome = f"median step {samples[len(samples) // 2]:.6g} s" if samples else result["reason"]
        print(f"rank {rank}: {result['status']}: {outcome}")
        num_failed += result["status"] != "ok"
    return 1 if num_failed else 0


def count_steps(num_steps: int, out_dir: Path) -> int:
    """Run steps of the trial that standard input holds; the caller counts their instructions."""
    from corewise.measured.worker.reduced_run import run_steps

    run_steps(parse_trial(json.loads(sys.stdin.read())), num_steps, out_dir)
    return 0


def find_unset_variables(required: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """Find the assignments of the trial that the environment lacks."""
    return [f"{name}={value}" for name, value in required.items() if actual.get(name) != value]


def _serve(runtime: str, cpus: Sequence[int], warm: bool) -> int:
    from corewise.measured.worker.command_loop import serve

    control = Channel(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    # The output of the framework must not reach the control pipe.
    os.dup2(2, 1)
    process_control.end_with_parent()
    process_control.adopt_orphans()
    process_control.set_process_name("cw-warm")
    if cpus:
        os.sched_setaffinity(0, cpus)
    serve(runtime, warm, control)
    return 0
