"""Compare our row-parallel LSTMs with torch's (oneDNN's), calls in turns, in inference and training.

    python benchmarks/row_lstms.py --threads 1 2 --out row_lstms.json

`corewise.malleable` and `corewise.freeze` use this operator: our kernel, or torch's if a rule expects ours to
be slower. So no ratio should lie below 1 by more than noise. Errors are those of all results and gradients,
relative to float64. Needs a C++ compiler.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from measuring import describe_machine, write_figures

from corewise.accelerate.kernels.build import load_native_module

STEPS = 100
FEATURES = 10
HIDDEN = (4, 10, 16, 24, 32, 64, 128, 256)
ROWS = (1, 4, 8, 16, 25, 32, 50, 64, 100, 400)
Run = Callable[..., Any]


def build_arguments(hidden: int, rows: int, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    layer = torch.nn.LSTM(FEATURES, hidden).to(dtype)
    states = [torch.zeros(1, rows, hidden, dtype=dtype)] * 2
    x = torch.randn(STEPS, rows, FEATURES, dtype=dtype)
    return (x, states, layer._flat_weights, True, 1, 0.0, False, False, False)


def infer(run: Run, args: tuple[Any, ...]) -> Any:
    with torch.no_grad():
        return run(*args)


def train(run: Run, args: tuple[Any, ...]) -> Any:
    rows = run(*args)[0]
    found = torch.autograd.grad(rows.sum(), args[2])
    return rows.detach(), *found


def compute_errors(mode: Run, args: tuple[Any, ...], runs: Sequence[Run]) -> list[float]:
    """Return the largest relative error of each run's results."""

    def convert_to_double(tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            return tree.detach().double().requires_grad_(tree.requires_grad)
        return [convert_to_double(one) for one in tree] if isinstance(tree, list) else tree

    exact = mode(runs[0], tuple(map(convert_to_double, args)))
    found = [mode(run, args) for run in runs]
    return [max(float((a.double() - b).norm() / b.norm()) for a, b in zip(one, exact, strict=True)) for one in found]


def measure_case(mode: Run, hidden: int, rows: int, seconds: float) -> dict[str, Any]:
    """Time both, call by call in turns, and compute their errors."""
    args = build_arguments(hidden, rows)
    runs = (torch.ops.aten.lstm.input, torch.ops.corewise.lstm)
    wrong = compute_errors(mode, args, runs)
    times: list[tuple[float, float]] = []
    until = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < until and len(times) < 200):
        began = time.perf_counter()
        mode(runs[0], args)
        between = time.perf_counter()
        mode(runs[1], args)
        times.append((between - began, time.perf_counter() - between))
    ratio = statistics.median(one / other for one, other in times)
    ours = statistics.median(other for _, other in times)
    sizes = {"mode": mode.__name__, "threads": torch.get_num_threads(), "hidden": hidden, "rows": rows}
    return {**sizes, "ratio": ratio, "ours_s": ours, "error_torch": wrong[0], "error_ours": wrong[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each case")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    load_native_module()
    cases: list[dict[str, Any]] = []
    print(f"{describe_machine()}\n{STEPS} steps of {FEATURES} features; times as fast as torch's, by rows {ROWS}")
    for mode, num_threads, hidden in itertools.product((infer, train), given.threads, HIDDEN):
        torch.set_num_threads(num_threads)
        own = [measure_case(mode, hidden, rows, given.seconds) for rows in ROWS]
        ratios = " ".join(f"{each['ratio']:5.2f}" for each in own)
        print(f"{mode.__name__} {num_threads:3} threads, hidden {hidden:4}: {ratios}", flush=True)
        cases += own
    ratios = [each["ratio"] for each in cases]
    wrong = [max(each[name] for each in cases) for name in ("error_torch", "error_ours")]
    print(f"{len(cases)} cases: {min(ratios):.2f} to {max(ratios):.2f}; largest errors: torch's {wrong[0]:.1e},")
    print(f"ours {wrong[1]:.1e}")
    write_figures(given.out, cases=cases)


if __name__ == "__main__":
    main()
