"""One product of matrices on torch: as tensors come, or with weights prepared beforehand.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Tuple

import numpy as np
import torch
from torch import Tensor

from corewise.runtimes.base import Check, Infeasible, RankContext
from corewise.runtimes.params import require_defaults
from corewise.runtimes.torch.bfloat16 import onednn_has_bfloat16
from corewise.runtimes.torch.primitive_job import (
    PrimitiveJob,
    benchdnn_facts,
    require_operator,
    require_room,
    roundoffs,
)
from corewise.runtimes.torch.settings import Settings, read_settings
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.benchdnn import benchdnn_words
from corewise.workloads.primitives.convolution import separated_types, types_of
from corewise.workloads.primitives.matmul import product_tolerance
from corewise.workloads.primitives.matrix_product import MATRIX_PRODUCT, AskedProduct
from corewise.workloads.primitives.product_check import product_error

INT8_LIMITS = {"u8": (0, 255, torch.uint8), "s8": (-127, 127, torch.int8)}
LARGEST_WEIGHT = 64  # CPUs without VNNI add pairs of products in 16 bits
CHECKED_ROWS = 64
BENCHDNN_TIMES = 10
Made = Tuple[Callable[[], Any], Callable[[Any], Check]]


def prepare_matrix_product(params: Mapping[str, Any], context: RankContext) -> PrimitiveJob:
    """The job; raises Infeasible with the reason where torch has no such product."""
    require_operator(params, MATRIX_PRODUCT.name)
    require_defaults(params, ("memory_format",), "matrices have no layout to choose; see args.reorders")
    refusal = MATRIX_PRODUCT.refusal(params)
    if refusal is not None:
        raise Infeasible(refusal)
    asked = MATRIX_PRODUCT.asked(workload_args(params))
    settings = read_settings(params, context)
    work = MATRIX_PRODUCT.work(str(params["mode"]), workload_args(params), settings.dtype)
    require_room(MATRIX_PRODUCT, params, settings, context)
    made = _whole_numbers if settings.dtype == "int8" else _floats
    types = types_of(settings.dtype, asked.int8_source)
    benchdnn = None
    if asked.benchdnn:
        options = {"dt": separated_types(types), "wtag": "any" if asked.reorders == "excluded" else "abx"}
        words = benchdnn_words(
            asked.benchdnn, "matmul", str(asked.problem), options, num_times=BENCHDNN_TIMES
        )
        benchdnn = benchdnn_facts([words], int(params["threads"]))
    return PrimitiveJob(
        settings,
        lambda seed: made(asked, settings, seed),
        context.rank,
        {"problem": str(asked.problem), "types": types},
        benchdnn,
        work.bytes_per_sample,
    )


def _floats(asked: AskedProduct, settings: Settings, seed: int) -> Made:
    problem, generator = asked.problem, torch.Generator().manual_seed(seed)
    dtype = getattr(torch, settings.dtype)

    def normal(shape: Tuple[int, ...]) -> Tensor:
        """A matrix at a time: what is drawn in float32 for a shorter format need not lie there whole."""
        made = torch.empty(shape, dtype=dtype, device=settings.device)
        for index in np.ndindex(*shape[:-2]):
            made[index] = torch.randn(shape[-2:], generator=generator, dtype=settings.tensor_dtype)
        return made

    a, b = normal(problem.source_shape), normal(problem.weights_shape)
    operate: Callable[[], Any] = lambda: torch.matmul(a, b)  # noqa: E731
    if asked.reorders == "excluded":
        operate = _prepared(a, b, settings)

    def check(c: Tensor) -> Check:
        tolerance = product_tolerance(problem.k, **roundoffs(settings, dtype))
        error = product_error(a, b, c, lambda rows: rows.double().cpu().numpy())
        return Check(error, tolerance, "the product with a random vector in float64")

    return operate, check


def _prepared(a: Tensor, b: Tensor, settings: Settings) -> Callable[[], Any]:
    """The product with weights that oneDNN has laid out for itself."""
    usable = settings.dtype == "float32" or (settings.dtype == "bfloat16" and onednn_has_bfloat16())
    if settings.device.type != "cpu" or not torch.backends.mkldnn.enabled or not usable:
        raise Infeasible(
            "reorders excluded: only oneDNN on a CPU takes prepared weights, in float32 or bfloat16"
        )
    packed = torch.ops.mkldnn._reorder_linear_weight(b.t().contiguous(), a.shape[0])
    operator = torch.ops.mkldnn._linear_pointwise.default
    return lambda: operator(a, packed, None, "none", [], "")


def _whole_numbers(asked: AskedProduct, settings: Settings, seed: int) -> Made:
    """Eight-bit factors and result; weights are always prepared, as quantised models hold them."""
    problem, generator = asked.problem, torch.Generator().manual_seed(seed)
    low, high, dtype = INT8_LIMITS[asked.int8_source]
    a = torch.randint(low, high + 1, problem.source_shape, generator=generator).to(dtype)
    b = torch.randint(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, problem.weights_shape, generator=generator)
    b = b.to(torch.int8)
    divisor = float(2 ** round(148.0 * 37.0 * problem.k**0.5 / 40.0).bit_length())
    scales, zeros = torch.ones(problem.n), torch.zeros(problem.n, dtype=torch.int64)
    try:
        packed = torch.ops.onednn.qlinear_prepack(b.t().contiguous(), list(a.shape))
        operator = torch.ops.onednn.qlinear_pointwise.default
        constant: Tuple[Any, ...] = (
            1.0,
            0,
            packed,
            scales,
            zeros,
            None,
            divisor,
            0,
            torch.int8,
            "none",
            [],
            "",
        )
        operator(a, *constant)
    except (RuntimeError, AttributeError) as met:
        said = str(met).strip().splitlines()[0]
        raise Infeasible(f"{asked.int8_source}s8s8: torch has no such product ({said})") from met

    def check(c: Tensor) -> Check:
        rows = torch.randint(problem.m, (min(CHECKED_ROWS, problem.m),), generator=generator)
        exact = a[rows].double() @ b.double()
        wanted = torch.round(exact / divisor).clamp(-128, 127)
        return Check(float((wanted - c[rows].double()).abs().max()), 0.0, "exact sums of whole numbers")

    return lambda: operator(a, *constant), check
