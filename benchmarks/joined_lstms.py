"""Compare small LSTMs over one input, joined into one wider layer, with the separate layers, on one thread.

    python benchmarks/joined_lstms.py --out joined.json

Four layers are joined as `corewise.freeze` and `corewise.malleable` join them. The results are compared first,
then both sides are timed in turns. Needs torch and numpy only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from measuring import describe_machine
from torch import nn

from corewise.accelerate.fast_kernels.wide_lstm import choose_group_sizes, count_vector_lanes
from corewise.accelerate.freeze.lstm_joining import JoinedLstm

NUM_LAYERS = 4
HIDDEN, FEATURES, STEPS, ROWS = (4, 8, 10, 12, 20, 24), (10, 64), (20, 100, 400), (16, 50, 400)


def measure_layers(hidden: int, features: int, steps: int, rows: int, rounds: int) -> Dict[str, Any]:
    """Measure the times of the separate layers over those of the wide ones, round by round."""
    layers = [nn.LSTM(features, hidden).eval() for _ in range(NUM_LAYERS)]
    sizes = choose_group_sizes(NUM_LAYERS, hidden, count_vector_lanes())
    places = list(itertools.accumulate([0, *sizes]))
    wide = [JoinedLstm(layers[a:b], [True] * (b - a)) for a, b in itertools.pairwise(places)]
    x = torch.randn(steps, rows, features)
    apart = [layer(x)[0] for layer in layers]
    joined = [part[0] for each in wide for part in each(x)]
    for one, other in zip(apart, joined, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    ratios: List[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        for layer in layers:
            layer(x)
        between = time.perf_counter()
        for each in wide:
            each(x)
        ratios.append((between - began) / (time.perf_counter() - between))
    sizes_of = {"hidden": hidden, "features": features, "steps": steps, "rows": rows, "sizes": sizes}
    return {**sizes_of, "ratio": statistics.median(ratios), "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    found: List[Dict[str, Any]] = []
    print(f"{describe_machine()}\nhidden features joined; times as fast, {STEPS} steps by {ROWS} rows")
    for hidden, features in itertools.product(HIDDEN, FEATURES):
        own = [measure_layers(hidden, features, *size, given.rounds) for size in itertools.product(STEPS, ROWS)]
        ratios = " ".join(f"{each['ratio']:5.2f}" for each in own)
        print(f"{hidden:6} {features:8} {own[0]['sizes']!s:7} {ratios}", flush=True)
        found += own
    all_ratios = [each["ratio"] for each in found]
    print(f"{len(found)} cases: {min(all_ratios):.2f} to {max(all_ratios):.2f}")
    if given.out is not None:
        given.out.write_text(json.dumps({"machine": describe_machine(), "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
