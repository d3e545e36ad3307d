"""Measure the gain of `corewise.freeze` in inference over TorchScript's and the compiler's freezing.

    python benchmarks/freeze_gain.py --threads 1 --batch 4 resnet50 alexnet --out freeze.json

Needs torch and numpy only. All variants of one model run in one process, a call of each in turn; ratios are
those of consecutive calls. The preparation time, including compilation, is shown too. Errors are relative to
float64. `eager` is channels_last for images. The C++ module is built beforehand.
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

from corewise.accelerate.freeze.freeze_module import freeze
from corewise.accelerate.kernels.build import NativeBuildError, load_native_module
from corewise.measured.runtimes.torch.modules.network import build_network
from corewise.measured.workloads.registry import find_workload

MODELS = ("alexnet", "resnet18", "resnet50", "resnext50_32x4d", "transformer", "lstm_ensemble")
Call = Callable[[], Any]


def build_model(name: str, batch: int) -> Tuple[Any, Any]:
    """Return a model and an input for it."""
    model: Any = find_workload(name)
    args = dict(model.parameters)
    module, shape = build_network(model.build_layers(args), 1).eval(), model.compute_input_shape(args)
    x = torch.randn(batch, *shape)
    if len(shape) == 3:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    return module, x


def build_variants(module: Any, x: Any, dtype: Any, compiles: bool) -> Dict[str, Callable[[], Call]]:
    """Return a builder for each variant of the call."""
    is_short = dtype == torch.bfloat16

    def bind_call(made: Any, given: Any = x) -> Call:
        def call() -> Any:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_short):
                return made(given)

        return call

    def compile_module() -> Call:
        import torch._inductor.config as inductor

        inductor.freezing = True
        torch._dynamo.reset()
        return bind_call(torch.compile(module, dynamic=False))

    def script_module() -> Call:
        plain = x.contiguous()
        return bind_call(torch.jit.optimize_for_inference(torch.jit.script(module)), plain)

    found: Dict[str, Callable[[], Call]] = {
        "eager": lambda: bind_call(module),
        "corewise.freeze": lambda: bind_call(freeze(module, (x,), dtype)),
    }
    if not is_short:
        found["corewise.freeze, winograd=False"] = lambda: bind_call(freeze(module, (x,), dtype, winograd=False))
        found["torch.jit.optimize_for_inference"] = script_module
    if compiles:
        found["torch.compile, freezing"] = compile_module
    return found


def measure_variants(name: str, batch: int, dtype: Any, seconds: float, compiles: bool) -> Dict[str, Any]:
    """Time the calls of every variant in turns; also its preparation time and its error."""
    module, x = build_model(name, batch)
    with torch.no_grad():
        wanted = build_model(name, batch)[0].double()(x.double())
        found: Dict[str, Any] = {}
        calls: Dict[str, Call] = {}
        for variant, make in build_variants(module, x, dtype, compiles).items():
            began = time.perf_counter()
            calls[variant] = make()
            result = calls[variant]().double()
            ready_s = time.perf_counter() - began
            error = float((result - wanted).norm() / wanted.norm())
            found[variant] = {"ready_s": ready_s, "error": error, "seconds": []}
        for call in calls.values():
            call()
        until, order = time.perf_counter() + seconds, list(calls)
        while time.perf_counter() < until or len(found["eager"]["seconds"]) < 5:
            for variant in order:
                began = time.perf_counter()
                calls[variant]()
                found[variant]["seconds"].append(time.perf_counter() - began)
    return found


def format_ratio(ones: List[float], others: List[float]) -> str:
    ratios = sorted(other / one for one, other in zip(ones, others, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return f"{statistics.median(ratios):5.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of calls, for each model and format")
    parser.add_argument("--without-compiler", action="store_true", help="leave torch.compile out")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    with contextlib.suppress(NativeBuildError):
        load_native_module()
    kept: Dict[str, Any] = {"torch": torch.__version__, "threads": given.threads, "batch": given.batch}
    kept["cpus"] = len(os.sched_getaffinity(0))
    for name in given.models or MODELS:
        for dtype in (torch.float32, torch.bfloat16):
            if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
                continue
            found = measure_variants(name, given.batch, dtype, given.seconds, not given.without_compiler)
            label = f"{name} {str(dtype).replace('torch.', '')}"
            print(f"{label}: times as fast as eager, quartiles; seconds to be ready; error", flush=True)
            for variant, one in found.items():
                ratio = format_ratio(one["seconds"], found["eager"]["seconds"])
                print(f"  {variant:34} {ratio}  {one['ready_s']:6.1f} s  {one['error']:.1e}", flush=True)
            kept[label] = found
            if given.out:
                given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
