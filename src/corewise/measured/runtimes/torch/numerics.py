"""Set the precision of float32 products and the treatment of denormals for the process, and verify both.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

import torch

from corewise.measured.parameters import Denormals, TrialParameters
from corewise.measured.runtimes.base import Infeasible

ONEDNN_PARTS = ("matmul", "conv", "rnn")
# oneDNN computes small products in float32 regardless of the setting.
PROBED_ROWS, PROBED_TERMS = 512, 512
# Errors of such products are about 1e-6 in float32, and at least 1e-4 in bf16 or tf32.
SHORT_PRODUCT_ERROR = 1e-5
# Per thread: torch splits elementwise work from 2**15 elements on.
ELEMENTS_FOR_EVERY_THREAD = 2**16


def set_numerics(params: TrialParameters) -> Mapping[str, Any]:
    """Apply the settings and return their measured effect; raise Infeasible if torch ignores them.

    Call it before the workload's first operator: threads that start later inherit the denormal mode.
    """
    facts: Dict[str, Any] = {}
    precision = params.float32_precision.value
    if precision != "default":
        facts.update(_set_float32_precision(precision, params.device.value, params.math.value))
    if params.denormals == Denormals.FLUSH:
        facts["denormals_flushed"] = torch.set_flush_denormal(True) and check_denormals_flushed()
        if not facts["denormals_flushed"]:
            raise Infeasible("denormals flush: torch does not flush denormals in all of its threads on this CPU")
    return facts


def measure_float32_product_error() -> float:
    """Measure the error of a float32 matrix product with torch's current settings."""
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(PROBED_ROWS, PROBED_TERMS, generator=generator)
    b = torch.randn(PROBED_TERMS, PROBED_TERMS, generator=generator)
    with torch.no_grad():
        wanted = a.double() @ b.double()
        return float(((a @ b).double() - wanted).abs().max() / wanted.abs().max())


def check_denormals_flushed() -> bool:
    """Check that a product below the smallest normal float32 is zero in every thread."""
    num_elements = ELEMENTS_FOR_EVERY_THREAD * torch.get_num_threads()
    small = torch.full((num_elements,), 1e-30) * torch.full((num_elements,), 1e-10)
    # The bits are compared, because a floating-point comparison may itself read denormals as zero.
    return not bool(small.view(torch.int32).any())


def _set_float32_precision(precision: str, device: str, math: str) -> Mapping[str, Any]:
    if device == "cuda":
        if precision != "tf32":
            raise Infeasible(f"float32_precision {precision}: on a GPU, torch supports tf32 and nothing shorter")
        # Convolutions use TF32 by default.
        torch.set_float32_matmul_precision("high")
        return {}
    if math == "vanilla" or not torch._C._has_mkldnn:
        raise Infeasible(f"float32_precision {precision}: on a CPU, only oneDNN supports it")
    parts = [getattr(torch.backends.mkldnn, name, None) for name in ONEDNN_PARTS]
    if not all(hasattr(part, "fp32_precision") for part in parts):
        raise Infeasible(
            f"float32_precision {precision}: torch {torch.__version__} has no such setting; use a newer torch"
        )
    for part in parts:
        part.fp32_precision = precision  # type: ignore[union-attr]
    error = measure_float32_product_error()
    if error < SHORT_PRODUCT_ERROR:
        raise Infeasible(
            f"float32_precision {precision}: oneDNN ignores the setting on this CPU (error of a product "
            f"{error:.0e}); it needs AMX"
        )
    return {"float32_product_error": error}
