"""What `corewise.freeze` gains in inference, beside TorchScript's and the compiler's ways to freeze.

    python benchmarks/freeze_gain.py --threads 1 --batch 4 resnet50 alexnet --out freeze.json

Needs torch and numpy only. All ways of one model run in one process, a call of each in turn; ratios are those
of calls that follow each other. What each takes to be ready, compilation included, stands beside. Errors are
relative to float64. `eager` is channels_last for images. The C++ module is built beforehand.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch

from corewise.dataflow.native.build import CannotBuild, native_module
from corewise.runtimes.torch.network import build_network
from corewise.runtimes.torch.prepared import freeze
from corewise.workloads.registry import find_workload

MODELS = ("alexnet", "resnet18", "resnet50", "resnext50_32x4d", "transformer", "lstm_ensemble")
Call = Callable[[], Any]


def built(name: str, batch: int) -> Tuple[Any, Any]:
    """A model and an input of it."""
    model: Any = find_workload(name)
    args = dict(model.parameters)
    module, shape = build_network(model.layers(args), 1).eval(), model.input_shape(args)
    x = torch.randn(batch, *shape)
    if len(shape) == 3:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    return module, x


def ways(module: Any, x: Any, dtype: Any, compiles: bool) -> Dict[str, Callable[[], Call]]:
    """Each way to run the model, made when asked."""
    is_short = dtype == torch.bfloat16

    def called(made: Any, given: Any = x) -> Call:
        def call() -> Any:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_short):
                return made(given)

        return call

    def compiled() -> Call:
        import torch._inductor.config as inductor

        inductor.freezing = True
        torch._dynamo.reset()
        return called(torch.compile(module, dynamic=False))

    def scripted() -> Call:
        plain = x.contiguous()
        return called(torch.jit.optimize_for_inference(torch.jit.script(module)), plain)

    found: Dict[str, Callable[[], Call]] = {
        "eager": lambda: called(module),
        "corewise.freeze": lambda: called(freeze(module, (x,), dtype)),
    }
    if not is_short:
        found["corewise.freeze, winograd=False"] = lambda: called(freeze(module, (x,), dtype, winograd=False))
        found["torch.jit.optimize_for_inference"] = scripted
    if compiles:
        found["torch.compile, freezing"] = compiled
    return found


def measured(name: str, batch: int, dtype: Any, seconds: float, compiles: bool) -> Dict[str, Any]:
    """Seconds of every way's calls, in turns, with what making it took and its error."""
    module, x = built(name, batch)
    with torch.no_grad():
        wanted = built(name, batch)[0].double()(x.double())
        found: Dict[str, Any] = {}
        calls: Dict[str, Call] = {}
        for way, make in ways(module, x, dtype, compiles).items():
            began = time.perf_counter()
            calls[way] = make()
            result = calls[way]().double()
            ready_s = time.perf_counter() - began
            error = float((result - wanted).norm() / wanted.norm())
            found[way] = {"ready_s": ready_s, "error": error, "seconds": []}
        for call in calls.values():
            call()
        until, order = time.perf_counter() + seconds, list(calls)
        while time.perf_counter() < until or len(found["eager"]["seconds"]) < 5:
            for way in order:
                began = time.perf_counter()
                calls[way]()
                found[way]["seconds"].append(time.perf_counter() - began)
    return found


def row(ones: List[float], others: List[float]) -> str:
    ratios = sorted(other / one for one, other in zip(ones, others, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return f"{statistics.median(ratios):5.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of calls, for each model and format")
    parser.add_argument("--without-compiler", action="store_true", help="leave torch.compile out")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    with contextlib.suppress(CannotBuild):
        native_module()
    kept: Dict[str, Any] = {"torch": torch.__version__, "threads": given.threads, "batch": given.batch}
    kept["cpus"] = len(os.sched_getaffinity(0))
    for name in given.models or MODELS:
        for dtype in (torch.float32, torch.bfloat16):
            if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
                continue
            found = measured(name, given.batch, dtype, given.seconds, not given.without_compiler)
            label = f"{name} {str(dtype).replace('torch.', '')}"
            print(f"{label}: times as fast as eager, quartiles; seconds to be ready; error", flush=True)
            for way, one in found.items():
                ratio = row(one["seconds"], found["eager"]["seconds"])
                print(f"  {way:34} {ratio}  {one['ready_s']:6.1f} s  {one['error']:.1e}", flush=True)
            kept[label] = found
            if given.out:
                given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
