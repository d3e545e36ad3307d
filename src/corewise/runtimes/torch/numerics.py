"""What float32 is computed in, and what becomes of numbers near zero: set for the process, and proved.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

import torch

from corewise.runtimes.base import Infeasible

ONEDNN_PARTS = ("matmul", "conv", "rnn")
PROBED_ROWS, PROBED_TERMS = 512, 512  # oneDNN keeps to float32 where a product is small
SHORT_PRODUCT_ERROR = 1e-5  # such products err by 1e-6 in float32, by 1e-4 and more through bf16 or tf32
ELEMENTS_FOR_EVERY_THREAD = 2**16  # per thread: torch divides elementwise work from 2**15 on


def set_numerics(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the settings did, measured; raises Infeasible where torch did not listen.

    Called before the workload's first operator: threads started later inherit what is done with denormals.
    """
    facts: Dict[str, Any] = {}
    precision = str(params.get("float32_precision", "default"))
    if precision != "default":
        facts.update(_set_float32_precision(precision, str(params["device"]), str(params["math"])))
    if params.get("denormals", "default") == "flush":
        facts["denormals_flushed"] = torch.set_flush_denormal(True) and denormals_flushed()
        if not facts["denormals_flushed"]:
            raise Infeasible("denormals flush: torch does not flush them in all its threads here")
    return facts


def float32_product_error() -> float:
    """The error of a float32 product of matrices, as torch computes it now."""
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(PROBED_ROWS, PROBED_TERMS, generator=generator)
    b = torch.randn(PROBED_TERMS, PROBED_TERMS, generator=generator)
    with torch.no_grad():
        wanted = a.double() @ b.double()
        return float(((a @ b).double() - wanted).abs().max() / wanted.abs().max())


def denormals_flushed() -> bool:
    """True when a product below float32's normal numbers is zero in every thread."""
    num_elements = ELEMENTS_FOR_EVERY_THREAD * torch.get_num_threads()
    small = torch.full((num_elements,), 1e-30) * torch.full((num_elements,), 1e-10)
    return not bool(small.view(torch.int32).any())  # as bits: a comparison may itself read denormals as zero


def _set_float32_precision(precision: str, device: str, math: str) -> Mapping[str, Any]:
    if device == "cuda":
        if precision != "tf32":
            raise Infeasible(
                f"float32_precision {precision}: torch computes float32 in TF32 at the least on a GPU"
            )
        torch.set_float32_matmul_precision("high")  # convolutions use TF32 by default
        return {}
    if math == "vanilla" or not torch._C._has_mkldnn:
        raise Infeasible(f"float32_precision {precision}: only oneDNN computes float32 so on a CPU")
    parts = [getattr(torch.backends.mkldnn, name, None) for name in ONEDNN_PARTS]
    if not all(hasattr(part, "fp32_precision") for part in parts):
        raise Infeasible(
            f"float32_precision {precision}: torch {torch.__version__} has no such setting; newer ones have"
        )
    for part in parts:
        part.fp32_precision = precision  # type: ignore[union-attr]
    error = float32_product_error()
    if error < SHORT_PRODUCT_ERROR:
        raise Infeasible(
            f"float32_precision {precision}: this CPU computes float32 products in float32, whatever oneDNN "
            f"is told (error {error:.0e}); it takes AMX"
        )
    return {"float32_product_error": error}
