"""Compare Winograd convolution with oneDNN with prepared weights: layers of three networks, in turns.

    python benchmarks/winograd_layers.py --threads 1 --batch 4 --out winograd_layers.json

Needs torch and numpy only, and a C++ compiler. Between calls a block of memory larger than most caches is
written, as other layers would do. Weights then come from memory, and Winograd needs four times as many. Errors
are those of normally distributed images and weights against float64: the root mean square and the largest,
both relative to the root mean square of the result.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from measuring import describe_machine
from torch import nn

from corewise.accelerate.fast_kernels.winograd_convolution import WinogradConvolution
from corewise.accelerate.freeze.packed_layers import PreparedConvolution
from corewise.accelerate.kernels.build import load_native_module

Call = Callable[[], Any]
Sizes = Tuple[int, int, int, int]
# Name, channels in and out, rows and columns, kernel.
LAYERS: Tuple[Tuple[str, int, int, int, int], ...] = (
    ("resnet layer1", 64, 64, 56, 3),
    ("resnet layer2", 128, 128, 28, 3),
    ("resnet layer3", 256, 256, 14, 3),
    ("resnet layer4", 512, 512, 7, 3),
    ("alexnet 2", 64, 192, 27, 5),
    ("alexnet 3", 192, 384, 13, 3),
    ("alexnet 4", 384, 256, 13, 3),
    ("alexnet 5", 256, 256, 13, 3),
)
FLUSHED_BYTES = 96 * 1024**2


def build_layers(channels: int, results: int, size: int, kernel: int, batch: int) -> Tuple[Any, Any, Any, Any]:
    """Return images, the float64 result of a convolution with a ReLU, and both implementations of the layer."""
    layer = nn.Conv2d(channels, results, kernel, padding=kernel // 2)
    nn.init.normal_(layer.weight, std=1 / math.sqrt(channels * kernel**2))
    x = torch.randn(batch, channels, size, size).contiguous(memory_format=torch.channels_last)
    ours = PreparedConvolution(layer, x.shape, torch.float32)
    ours.activation = ("relu", None)
    return x, layer.double()(x.double()).relu(), ours, WinogradConvolution(layer.float(), ours)


def compute_errors(made: Any, wanted: Any) -> Tuple[float, float]:
    """Return the root mean square and the largest error, relative to the root mean square of `wanted`."""
    off, size = made.double() - wanted, wanted.square().mean().sqrt()
    return float(off.square().mean().sqrt() / size), float(off.abs().max() / size)


def time_in_turns(calls: List[Callable[[], Any]], rounds: int, flushed: Any) -> List[List[float]]:
    """Time the calls in turns; `flushed` is written before each call, so that data comes from memory."""
    found: List[List[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seconds in zip(calls, found, strict=True):
            if flushed is not None:
                flushed.add_(1.0)
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
    return found


def compare_calls(onednn: Callable[[], Any], winograd: Callable[[], Any], rounds: int, flushed: Any) -> Dict[str, Any]:
    """Time both; return their seconds and the speed-up of Winograd."""
    one, other = time_in_turns([onednn, winograd], rounds, flushed)
    ratios = sorted(a / b for a, b in zip(one, other, strict=True))
    return {
        "onednn_s": statistics.median(one),
        "winograd_s": statistics.median(other),
        "ratio": statistics.median(ratios),
        "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
    }


def measure_layer(sizes: Sizes, batch: int, rounds: int) -> Dict[str, Any]:
    x, wanted, onednn, winograd = build_layers(*sizes, batch)
    found: Dict[str, Any] = {"sizes": sizes, "errors": {}}
    for name, layer in (("onednn", onednn), ("winograd", winograd)):
        found["errors"][name] = compute_errors(layer(x), wanted)
    flushed = torch.zeros(FLUSHED_BYTES // 4)
    for state, block in (("cold", flushed), ("warm", None)):
        found[state] = compare_calls(lambda: onednn(x), lambda: winograd(x), rounds, block)
    return found


def format_title(name: str, sizes: Sizes) -> str:
    channels, results, size, kernel = sizes
    return f"{name:14} {channels:4} to {results:3}, {kernel}x{kernel} at {size:2}x{size:2}:"


def format_times(found: Dict[str, Any]) -> str:
    low, high = found["quartiles"]
    milliseconds = f"{found['onednn_s'] * 1e3:6.2f} {found['winograd_s'] * 1e3:6.2f} ms"
    return f"{milliseconds} {found['ratio']:.2f} [{low:.2f}, {high:.2f}]"


def format_line(name: str, found: Dict[str, Any]) -> str:
    text = format_title(name, found["sizes"])
    for state in ("cold", "warm"):
        text += f"  {state} {format_times(found[state])}"
    pairs = (found["errors"][name] for name in ("onednn", "winograd"))
    return text + "  errors " + ", ".join(f"{mean:.1e} (at most {most:.1e})" for mean, most in pairs)


def run(
    description: str,
    header: str,
    batch: int,
    measure: Callable[[Sizes, int, int], Dict[str, Any]],
    format_result: Callable[[str, Dict[str, Any]], str],
) -> None:
    """Measure every layer with the options of the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    load_native_module()
    print(f"{describe_machine()}\n{header}")
    kept: Dict[str, Any] = {"machine": describe_machine(), "threads": given.threads, "batch": given.batch}
    for name, *sizes in LAYERS:
        kept[name] = measure((sizes[0], sizes[1], sizes[2], sizes[3]), given.batch, given.rounds)
        print(format_result(name, kept[name]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    header = "oneDNN's and Winograd's milliseconds, times as fast with quartiles, errors"
    run(str(__doc__), header, 4, measure_layer, format_line)
