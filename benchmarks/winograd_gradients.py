"""Compare Winograd convolution with oneDNN in training: the three products of each layer, in turns.

    python benchmarks/winograd_gradients.py --threads 2 --batch 16 --out winograd_gradients.json

Needs torch and numpy only, and a C++ compiler. The products are the result, the gradient of the images and
that of the weights. Weights change at every step, so ours transform them in every call. Between calls a block
of memory larger than most caches is written. Errors are root mean squares against float64, relative to the
exact result, for normally distributed images, weights and gradients.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Callable, Dict

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from winograd_layers import FLUSHED_BYTES, Sizes, compare_calls, compute_errors, format_times, format_title, run

PRODUCTS = ("result", "images", "weights")


def draw_normal(*sizes: int) -> Any:
    return torch.randn(*sizes).contiguous(memory_format=torch.channels_last)


def build_torch_products(x: Any, weight: Any, dy: Any) -> Dict[str, Callable[[], Any]]:
    """Return torch's call for each product."""
    around = weight.shape[2] // 2

    def compute_gradient(place: int) -> Any:
        mask = [place == 0, place == 1, False]
        sizes = ([1, 1], [around, around], [1, 1], False, [0, 0], 1)
        return torch.ops.aten.convolution_backward(dy, x, weight, None, *sizes, mask)[place]

    calls = (lambda: torch.conv2d(x, weight, padding=around), lambda: compute_gradient(0), lambda: compute_gradient(1))
    return dict(zip(PRODUCTS, calls, strict=True))


def build_own_products(x: Any, weight: Any, dy: Any) -> Dict[str, Callable[[], Any]]:
    # The backward pass needs the same padding.
    kernel, around = weight.shape[2], [weight.shape[2] // 2] * 2
    ops = torch.ops.corewise
    calls = (
        lambda: ops.winograd_changing_convolution(x, weight, None, around, False),
        lambda: ops.winograd_changing_convolution(dy, weight, None, around, True),
        lambda: ops.winograd_weight_gradient(x, dy, kernel, around),
    )
    return dict(zip(PRODUCTS, calls, strict=True))


def measure_layer(sizes: Sizes, batch: int, rounds: int) -> Dict[str, Any]:
    channels, results, size, kernel = sizes
    x, dy = draw_normal(batch, channels, size, size), draw_normal(batch, results, size, size)
    weight = draw_normal(results, channels, kernel, kernel) / math.sqrt(channels * kernel**2)
    wanted = build_torch_products(x.double(), weight.double(), dy.double())
    flushed = torch.zeros(FLUSHED_BYTES // 4)
    found: Dict[str, Any] = {"sizes": sizes}
    for name, torchs in build_torch_products(x, weight, dy).items():
        own = build_own_products(x, weight, dy)[name]
        right = wanted[name]()
        off = [compute_errors(call(), right)[0] for call in (torchs, own)]
        found[name] = {**compare_calls(torchs, own, rounds, flushed), "errors": off}
    return found


def format_line(name: str, found: Dict[str, Any]) -> str:
    text = format_title(name, found["sizes"])
    for product in PRODUCTS:
        one, other = found[product]["errors"]
        text += f"  {product} {format_times(found[product])} {one:.0e} {other:.0e}"
    return text


if __name__ == "__main__":
    header = "each product: oneDNN's and Winograd's milliseconds, times as fast, errors of both"
    run(str(__doc__), header, 16, measure_layer, format_line)
