"""What `corewise.quicken` gains in training, beside plain torch and its compiler.

    python benchmarks/quicken_gain.py --threads 2 --batch 8 resnet18 alexnet --out quicken.json

Needs torch and numpy only. A step is a forward and a backward pass; all ways of one model run in one process,
a step of each in turn, and ratios are those of steps that follow each other. Images lie as channels_last. The
C++ module is built beforehand. Errors are those of all gradients together, relative to float64; where the
largest of pooled values is a tie up to rounding, the gradient goes another way: an error near 1e-3.
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
from freeze_gain import built, row

from corewise.dataflow.native.build import native_module
from corewise.runtimes.torch.models import training_loss
from corewise.runtimes.torch.quickened import num_quickened, quicken

MODELS = ("resnet18", "alexnet", "resnet50", "resnext50_32x4d", "lstm_ensemble")
Step = Callable[[], Any]


def step_of(called: Any, module: Any, x: Any, y: Any) -> Step:
    def step() -> List[Any]:
        module.zero_grad()
        torch.manual_seed(7)  # the same dropout
        training_loss(called(x), y).backward()  # type: ignore[no-untyped-call]
        return [each.grad for each in module.parameters()]

    return step


def ways(module: Any, x: Any, y: Any, compiles: bool) -> Dict[str, Callable[[], Step]]:
    """Each way to run a step, made when asked."""

    def quickened() -> Step:
        own = quicken(copy.deepcopy(module))
        return step_of(own, own, x, y)

    def compiled() -> Step:
        own = copy.deepcopy(module)
        return step_of(torch.compile(own, dynamic=False), own, x, y)

    found = {"eager": lambda: step_of(module, module, x, y), "corewise.quicken": quickened}
    return {**found, "torch.compile": compiled} if compiles else found


def error(got: List[Any], wanted: List[Any]) -> float:
    apart = sum(float((one.double() - other).square().sum()) for one, other in zip(got, wanted, strict=True))
    return float((apart / sum(float(each.square().sum()) for each in wanted)) ** 0.5)


def measured(name: str, batch: int, seconds: float, compiles: bool) -> Dict[str, Any]:
    """Seconds of every way's steps, in turns, with what making it took and its error."""
    torch.manual_seed(3)
    module, x = built(name, batch)
    module.train()
    for each in module.modules():
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0  # float64 draws other masks
    num_classes = module(x).shape[-1]
    y = torch.randint(num_classes, (batch,))
    exact = copy.deepcopy(module).double()
    wanted = step_of(exact, exact, x.double(), y)()
    del exact
    found: Dict[str, Any] = {}
    steps: Dict[str, Step] = {}
    for way, make in ways(module, x, y, compiles).items():
        began = time.perf_counter()
        steps[way] = make()
        got = steps[way]()
        found[way] = {"ready_s": time.perf_counter() - began, "error": error(got, wanted), "seconds": []}
    del got, wanted
    for step in steps.values():
        step()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(found["eager"]["seconds"]) < 5:
        for way, step in steps.items():
            began = time.perf_counter()
            step()
            found[way]["seconds"].append(time.perf_counter() - began)
    return {"layers": num_quickened(quicken(module)), "ways": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=20.0, help="of steps, for each model")
    parser.add_argument("--without-compiler", action="store_true", help="without torch.compile")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    native_module()
    torch.set_num_threads(given.threads)
    kept: Dict[str, Any] = {"threads": given.threads, "batch": given.batch, "models": {}}
    print(f"{'model':16} {'way':18} {'gain [quartiles]':20} {'ms':>8} {'ready':>7} error")
    for name in given.models or MODELS:
        found = measured(name, given.batch, given.seconds, not given.without_compiler)
        kept["models"][name] = found
        eager = found["ways"]["eager"]["seconds"]
        for way, each in found["ways"].items():
            middle = sorted(each["seconds"])[len(each["seconds"]) // 2] * 1e3
            gain = row(each["seconds"], eager)
            print(f"{name:16} {way:18} {gain:20} {middle:8.1f} {each['ready_s']:6.1f}s {each['error']:.1e}")
        if given.out is not None:
            given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
