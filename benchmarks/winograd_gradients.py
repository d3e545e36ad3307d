"""A convolution that learns: its three products by Winograd's way beside oneDNN's, layer by layer, in turns.

    python benchmarks/winograd_gradients.py --threads 2 --batch 16 --out winograd_gradients.json

Needs torch and numpy only, and a C++ compiler. The products are the result, the gradient of the images and
that of the weights; ours transform the weights, which change at every step, in every call. Between calls a
block of memory larger than most caches is written. Errors: root mean square against float64, relative to that
of what is computed, for normally distributed images, weights and gradients.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from measuring import machine_line
from winograd_layers import FLUSHED_BYTES, LAYERS, errors, in_turns

from corewise.dataflow.native.build import native_module

PRODUCTS = ("result", "images", "weights")


def drawn(*sizes: int) -> Any:
    return torch.randn(*sizes).contiguous(memory_format=torch.channels_last)


def products(x: Any, weight: Any, dy: Any) -> Dict[str, Callable[[], Any]]:
    """Each product as torch computes it."""
    around = weight.shape[2] // 2

    def gradient(place: int) -> Any:
        mask = [place == 0, place == 1, False]
        sizes = ([1, 1], [around, around], [1, 1], False, [0, 0], 1)
        return torch.ops.aten.convolution_backward(dy, x, weight, None, *sizes, mask)[place]

    calls = (lambda: torch.conv2d(x, weight, padding=around), lambda: gradient(0), lambda: gradient(1))
    return dict(zip(PRODUCTS, calls, strict=True))


def own_products(x: Any, weight: Any, dy: Any) -> Dict[str, Callable[[], Any]]:
    kernel, around = weight.shape[2], [weight.shape[2] // 2] * 2  # as much on the way back
    ops = torch.ops.corewise
    calls = (
        lambda: ops.winograd_changing_convolution(x, weight, None, around, False),
        lambda: ops.winograd_changing_convolution(dy, weight, None, around, True),
        lambda: ops.winograd_weight_gradient(x, dy, kernel, around),
    )
    return dict(zip(PRODUCTS, calls, strict=True))


def measured(sizes: Tuple[int, int, int, int], batch: int, rounds: int) -> Dict[str, Any]:
    channels, results, size, kernel = sizes
    x, dy = drawn(batch, channels, size, size), drawn(batch, results, size, size)
    weight = drawn(results, channels, kernel, kernel) / math.sqrt(channels * kernel**2)
    wanted = products(x.double(), weight.double(), dy.double())
    flushed = torch.zeros(FLUSHED_BYTES // 4)
    found: Dict[str, Any] = {"sizes": sizes}
    for name, torchs in products(x, weight, dy).items():
        own = own_products(x, weight, dy)[name]
        right = wanted[name]()
        off = [errors(call(), right)[0] for call in (torchs, own)]
        one, other = in_turns([torchs, own], rounds, flushed)
        ratios = sorted(a / b for a, b in zip(one, other, strict=True))
        found[name] = {
            "onednn_s": statistics.median(one),
            "winograd_s": statistics.median(other),
            "ratio": statistics.median(ratios),
            "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
            "errors": off,
        }
    return found


def line(name: str, found: Dict[str, Any]) -> str:
    channels, results, size, kernel = found["sizes"]
    text = f"{name:14} {channels:4} to {results:3}, {kernel}x{kernel} at {size:2}x{size:2}:"
    for product in PRODUCTS:
        one = found[product]
        low, high = one["quartiles"]
        text += f"  {product} {one['onednn_s'] * 1e3:.1f} {one['winograd_s'] * 1e3:.1f} ms"
        text += f" {one['ratio']:.2f} [{low:.2f}, {high:.2f}] {one['errors'][0]:.0e} {one['errors'][1]:.0e}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    native_module()
    print(
        f"{machine_line()}\neach product: oneDNN's and Winograd's milliseconds, times as fast, errors of both"
    )
    kept: Dict[str, Any] = {"machine": machine_line(), "threads": given.threads, "batch": given.batch}
    for name, *sizes in LAYERS:
        kept[name] = measured((sizes[0], sizes[1], sizes[2], sizes[3]), given.batch, given.rounds)
        print(line(name, kept[name]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
