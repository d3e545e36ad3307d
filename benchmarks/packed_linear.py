"""Time linear layers: plain, with packed weights, and with the check of the weights that each call of a plan makes.

    python benchmarks/packed_linear.py --threads 16 --out packed_linear.json

Needs torch and numpy only, and a C++ compiler. Enough layers of one size take turns to fill the caches, so
weights come from memory. The three variants take turns too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from measuring import describe_machine

from corewise.accelerate.kernels.build import load_native_module

SIZES = ((256, 1024), (1024, 1024), (4096, 4096), (9216, 4096))
ROWS = (2, 8, 16, 32, 64, 128, 512)
# Larger layers take long and show nothing new.
MOST_PRODUCTS = 5e9
CACHES_BYTES, MOST_LAYERS = 160 * 2**20, 12


def measure_layer(features: int, results: int, rows: int, rounds: int) -> Dict[str, Any]:
    """Measure the microseconds of a layer in each variant: the median of the rounds after the first."""
    num = max(1, min(MOST_LAYERS, CACHES_BYTES // (features * results * 4)))
    weights = [torch.randn(results, features) for _ in range(num)]
    bias, x = torch.randn(results), torch.randn(rows, features)
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]

    def run_plain() -> None:
        for weight in weights:
            torch.nn.functional.linear(x, weight, bias)

    def run_packed() -> None:
        for weight in packed:
            torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    def run_packed_checked() -> None:
        load_native_module().contents(weights)
        run_packed()

    variants: Dict[str, Callable[[], None]] = {"plain": run_plain, "packed": run_packed, "checked": run_packed_checked}
    found: Dict[str, List[float]] = {name: [] for name in variants}
    for _ in range(rounds + 1):
        for name, call in variants.items():
            began = time.perf_counter()
            call()
            found[name].append((time.perf_counter() - began) / num)
    medians = {name: 1e6 * statistics.median(seconds[1:]) for name, seconds in found.items()}
    return {"in": features, "out": results, "rows": rows, **medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    load_native_module()
    print(f"{describe_machine()}\n{'layer':>14} {'rows':>5} {'plain µs':>10} {'packed':>10} {'checked':>10} gain")
    layers = []
    for features, results in SIZES:
        for rows in ROWS:
            if rows * features * results > MOST_PRODUCTS:
                continue
            one = measure_layer(features, results, rows, given.rounds)
            layers.append(one)
            gain = one["plain"] / one["checked"]
            title = f"{features} to {results}"
            times = f"{one['plain']:10.1f} {one['packed']:10.1f} {one['checked']:10.1f}"
            print(f"{title:>14} {rows:5} {times} {gain:.2f}", flush=True)
    if given.out is not None:
        kept = {"machine": describe_machine(), "threads": given.threads, "layers": layers}
        given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
