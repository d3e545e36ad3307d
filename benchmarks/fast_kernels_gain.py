"""Measure the gain of `corewise.use_fast_kernels` in training over plain torch and its compiler.

    python benchmarks/fast_kernels_gain.py --threads 2 --batch 8 resnet18 alexnet --out use_fast_kernels.json

Needs torch and numpy only. A step is a forward and a backward pass. All variants of one model run in one
process, a step of each in turn; ratios are those of consecutive steps. Images are channels_last. The C++
module is built beforehand. Errors are those of all gradients together, relative to float64. If the largest of
pooled values is a tie up to rounding, the gradient takes another path: an error near 1e-3.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from freeze_gain import build_model, format_ratio

from corewise.accelerate.fast_kernels.use_fast_kernels import count_fast_layers, use_fast_kernels
from corewise.accelerate.kernels.build import load_native_module
from corewise.measured.runtimes.torch.modules.described_models import compute_training_loss

MODELS = ("resnet18", "alexnet", "resnet50", "resnext50_32x4d", "lstm_ensemble")
Step = Callable[[], Any]


def build_step(called: Any, module: Any, x: Any, y: Any) -> Step:
    def step() -> List[Any]:
        module.zero_grad()
        # Each step drops the same values.
        torch.manual_seed(7)
        compute_training_loss(called(x), y).backward()  # type: ignore[no-untyped-call]
        return [each.grad for each in module.parameters()]

    return step


def build_variants(module: Any, x: Any, y: Any, compiles: bool) -> Dict[str, Callable[[], Step]]:
    """Return a builder for each variant of the step."""

    def make_fast() -> Step:
        own = use_fast_kernels(copy.deepcopy(module))
        return build_step(own, own, x, y)

    def compile_step() -> Step:
        own = copy.deepcopy(module)
        return build_step(torch.compile(own, dynamic=False), own, x, y)

    found = {"eager": lambda: build_step(module, module, x, y), "corewise.use_fast_kernels": make_fast}
    return {**found, "torch.compile": compile_step} if compiles else found


def compute_error(got: List[Any], wanted: List[Any]) -> float:
    apart = sum(float((one.double() - other).square().sum()) for one, other in zip(got, wanted, strict=True))
    return float((apart / sum(float(each.square().sum()) for each in wanted)) ** 0.5)


def measure_variants(name: str, batch: int, seconds: float, compiles: bool) -> Dict[str, Any]:
    """Time the steps of every variant in turns; also its preparation time and its error."""
    torch.manual_seed(3)
    module, x = build_model(name, batch)
    module.train()
    for each in module.modules():
        if isinstance(each, torch.nn.Dropout):
            # A float64 model would draw other masks.
            each.p = 0.0
    num_classes = module(x).shape[-1]
    y = torch.randint(num_classes, (batch,))
    exact = copy.deepcopy(module).double()
    wanted = build_step(exact, exact, x.double(), y)()
    del exact
    found: Dict[str, Any] = {}
    steps: Dict[str, Step] = {}
    for variant, make in build_variants(module, x, y, compiles).items():
        began = time.perf_counter()
        steps[variant] = make()
        got = steps[variant]()
        found[variant] = {"ready_s": time.perf_counter() - began, "error": compute_error(got, wanted), "seconds": []}
    del got, wanted
    for step in steps.values():
        step()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(found["eager"]["seconds"]) < 5:
        for variant, step in steps.items():
            began = time.perf_counter()
            step()
            found[variant]["seconds"].append(time.perf_counter() - began)
    return {"layers": count_fast_layers(use_fast_kernels(module)), "ways": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=20.0, help="of steps, for each model")
    parser.add_argument("--without-compiler", action="store_true", help="without torch.compile")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    load_native_module()
    torch.set_num_threads(given.threads)
    kept: Dict[str, Any] = {"threads": given.threads, "batch": given.batch, "models": {}}
    print(f"{'model':16} {'variant':18} {'gain [quartiles]':20} {'ms':>8} {'ready':>7} error")
    for name in given.models or MODELS:
        found = measure_variants(name, given.batch, given.seconds, not given.without_compiler)
        kept["models"][name] = found
        eager = found["ways"]["eager"]["seconds"]
        for variant, each in found["ways"].items():
            middle = sorted(each["seconds"])[len(each["seconds"]) // 2] * 1e3
            gain = format_ratio(each["seconds"], eager)
            print(f"{name:16} {variant:18} {gain:20} {middle:8.1f} {each['ready_s']:6.1f}s {each['error']:.1e}")
        if given.out is not None:
            given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
