"""A convolution that learns: its three products by Winograd's way beside oneDNN's, layer by layer, in turns.

    python benchmarks/winograd_gradients.py --threads 2 --batch 16 --out winograd_gradients.json

Needs torch and numpy only, and a C++ compiler. The products are the result, the gradient of the images and
that of the weights; ours transform the weights, which change at every step, in every call. Between calls a
block of memory larger than most caches is written. Errors: root mean square against float64, relative to that
of what is computed, for normally distributed images, weights and gradients.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Callable, Dict

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from winograd_layers import FLUSHED_BYTES, Sizes, compared, errors, run, times, title

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


def measured(sizes: Sizes, batch: int, rounds: int) -> Dict[str, Any]:
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
        found[name] = {**compared(torchs, own, rounds, flushed), "errors": off}
    return found


def line(name: str, found: Dict[str, Any]) -> str:
    text = title(name, found["sizes"])
    for product in PRODUCTS:
        one, other = found[product]["errors"]
        text += f"  {product} {times(found[product])} {one:.0e} {other:.0e}"
    return text


if __name__ == "__main__":
    header = "each product: oneDNN's and Winograd's milliseconds, times as fast, errors of both"
    run(str(__doc__), header, 16, measured, line)
