"""Convolutions by Winograd's way beside oneDNN's with prepared weights: layers of three networks, in turns.

    python benchmarks/winograd_layers.py --threads 1 --batch 4 --out winograd_layers.json

Needs torch and numpy only, and a C++ compiler. Between calls a block of memory larger than most caches is
written, as other layers would: weights come from memory then, of which Winograd's take four times as many.
Errors are those of normally distributed images and weights against float64: the root mean square and the
largest, both relative to the root mean square of the result.
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
from measuring import machine_line
from torch import nn

from corewise.dataflow.native.build import native_module
from corewise.runtimes.torch.prepared_layers import PreparedConvolution
from corewise.runtimes.torch.winograd import WinogradConvolution

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


def both(channels: int, results: int, size: int, kernel: int, batch: int) -> Tuple[Any, Any, Any, Any]:
    """An image, what a convolution with a ReLU gives for it in float64, and that layer in both ways."""
    layer = nn.Conv2d(channels, results, kernel, padding=kernel // 2)
    nn.init.normal_(layer.weight, std=1 / math.sqrt(channels * kernel**2))
    x = torch.randn(batch, channels, size, size).contiguous(memory_format=torch.channels_last)
    ours = PreparedConvolution(layer, x.shape, torch.float32)
    ours.activation = ("relu", None)
    return x, layer.double()(x.double()).relu(), ours, WinogradConvolution(layer.float(), ours)


def errors(made: Any, wanted: Any) -> Tuple[float, float]:
    """The root mean square and the largest error, relative to the root mean square of what is wanted."""
    off, size = made.double() - wanted, wanted.square().mean().sqrt()
    return float(off.square().mean().sqrt() / size), float(off.abs().max() / size)


def in_turns(calls: List[Callable[[], Any]], rounds: int, flushed: Any) -> List[List[float]]:
    """Seconds of each call, one of each in turn, from memory where something is given to write."""
    found: List[List[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seconds in zip(calls, found, strict=True):
            if flushed is not None:
                flushed.add_(1.0)
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
    return found


def compared(
    onednn: Callable[[], Any], winograd: Callable[[], Any], rounds: int, flushed: Any
) -> Dict[str, Any]:
    """Seconds of both, and how many times as fast Winograd's is."""
    one, other = in_turns([onednn, winograd], rounds, flushed)
    ratios = sorted(a / b for a, b in zip(one, other, strict=True))
    return {
        "onednn_s": statistics.median(one),
        "winograd_s": statistics.median(other),
        "ratio": statistics.median(ratios),
        "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
    }


def measured(sizes: Sizes, batch: int, rounds: int) -> Dict[str, Any]:
    x, wanted, onednn, winograd = both(*sizes, batch)
    found: Dict[str, Any] = {"sizes": sizes, "errors": {}}
    for name, layer in (("onednn", onednn), ("winograd", winograd)):
        found["errors"][name] = errors(layer(x), wanted)
    flushed = torch.zeros(FLUSHED_BYTES // 4)
    for state, block in (("cold", flushed), ("warm", None)):
        found[state] = compared(lambda: onednn(x), lambda: winograd(x), rounds, block)
    return found


def title(name: str, sizes: Sizes) -> str:
    channels, results, size, kernel = sizes
    return f"{name:14} {channels:4} to {results:3}, {kernel}x{kernel} at {size:2}x{size:2}:"


def times(found: Dict[str, Any]) -> str:
    low, high = found["quartiles"]
    milliseconds = f"{found['onednn_s'] * 1e3:6.2f} {found['winograd_s'] * 1e3:6.2f} ms"
    return f"{milliseconds} {found['ratio']:.2f} [{low:.2f}, {high:.2f}]"


def line(name: str, found: Dict[str, Any]) -> str:
    text = title(name, found["sizes"])
    for state in ("cold", "warm"):
        text += f"  {state} {times(found[state])}"
    pairs = (found["errors"][way] for way in ("onednn", "winograd"))
    return text + "  errors " + ", ".join(f"{mean:.1e} (at most {most:.1e})" for mean, most in pairs)


def run(
    description: str,
    header: str,
    batch: int,
    measure: Callable[[Sizes, int, int], Dict[str, Any]],
    told: Callable[[str, Dict[str, Any]], str],
) -> None:
    """Measure every layer, as the command line asks."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    native_module()
    print(f"{machine_line()}\n{header}")
    kept: Dict[str, Any] = {"machine": machine_line(), "threads": given.threads, "batch": given.batch}
    for name, *sizes in LAYERS:
        kept[name] = measure((sizes[0], sizes[1], sizes[2], sizes[3]), given.batch, given.rounds)
        print(told(name, kept[name]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    header = "oneDNN's and Winograd's milliseconds, times as fast with quartiles, errors"
    run(str(__doc__), header, 4, measured, line)
