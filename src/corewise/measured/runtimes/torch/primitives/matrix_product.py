"""The matrix product primitive on torch: with plain weights, or with prepared ones.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Tuple

import numpy as np
import torch
from torch import Tensor

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Check, Infeasible, RankContext
from corewise.measured.runtimes.torch.bfloat16 import supports_onednn_bfloat16
from corewise.measured.runtimes.torch.primitives.primitive_job import (
    PrimitiveJob,
    build_benchdnn_query,
    compute_roundoffs,
    require_operator,
    require_room,
)
from corewise.measured.runtimes.torch.settings import Settings, read_settings
from corewise.measured.runtimes.trial_params import require_defaults
from corewise.measured.workloads.primitives.benchdnn import build_benchdnn_command
from corewise.measured.workloads.primitives.convolution import format_benchdnn_types, separate_types
from corewise.measured.workloads.primitives.freivalds_check import compute_product_error
from corewise.measured.workloads.primitives.matmul import compute_product_tolerance
from corewise.measured.workloads.primitives.matrix_product import MATRIX_PRODUCT, MatrixProductArguments

INT8_LIMITS = {"u8": (0, 255, torch.uint8), "s8": (-127, 127, torch.int8)}
# CPUs without VNNI add pairs of products in 16 bits.
LARGEST_WEIGHT = 64
CHECKED_ROWS = 64
BENCHDNN_TIMES = 10
Operator = Tuple[Callable[[], Any], Callable[[Any], Check]]


def prepare_matrix_product(params: TrialParameters, context: RankContext) -> PrimitiveJob:
    """Prepare the job; raise Infeasible with the reason if torch has no such product."""
    require_operator(params, MATRIX_PRODUCT.name)
    require_defaults(params, ("memory_format",), "matrices have only one layout; see args.reorders")
    refusal = MATRIX_PRODUCT.explain_refusal(params)
    if refusal is not None:
        raise Infeasible(refusal)
    arguments = MATRIX_PRODUCT.read_arguments(params.arguments)
    settings = read_settings(params, context)
    work = MATRIX_PRODUCT.count_work(params.mode.value, params.arguments, settings.dtype)
    require_room(MATRIX_PRODUCT, params, settings, context)
    made = _build_int8_product if settings.dtype == "int8" else _build_float_product
    types = format_benchdnn_types(settings.dtype, arguments.int8_source)
    benchdnn = None
    if arguments.benchdnn:
        options = {"dt": separate_types(types), "wtag": "any" if arguments.reorders == "excluded" else "abx"}
        command = build_benchdnn_command(
            arguments.benchdnn, "matmul", str(arguments.problem), options, num_times=BENCHDNN_TIMES
        )
        benchdnn = build_benchdnn_query([command], params.threads)
    return PrimitiveJob(
        settings,
        lambda seed: made(arguments, settings, seed),
        context.rank,
        {"problem": str(arguments.problem), "types": types},
        benchdnn,
        work.bytes_per_sample,
    )


def _build_float_product(arguments: MatrixProductArguments, settings: Settings, seed: int) -> Operator:
    problem, generator = arguments.problem, torch.Generator().manual_seed(seed)
    dtype = getattr(torch, settings.dtype)

    def draw_normal(shape: Tuple[int, ...]) -> Tensor:
        """Draw one matrix at a time, so that float32 values for a shorter dtype need less memory."""
        made = torch.empty(shape, dtype=dtype, device=settings.device)
        for index in np.ndindex(*shape[:-2]):
            made[index] = torch.randn(shape[-2:], generator=generator, dtype=settings.tensor_dtype)
        return made

    a, b = draw_normal(problem.source_shape), draw_normal(problem.weights_shape)
    operate: Callable[[], Any] = lambda: torch.matmul(a, b)  # noqa: E731
    if arguments.reorders == "excluded":
        operate = _build_prepared_product(a, b, settings)

    def check(c: Tensor) -> Check:
        tolerance = compute_product_tolerance(problem.k, **compute_roundoffs(settings, dtype))
        error = compute_product_error(a, b, c, lambda rows: rows.double().cpu().numpy())
        return Check(error, tolerance, "the product with a random vector in float64")

    return operate, check


def _build_prepared_product(a: Tensor, b: Tensor, settings: Settings) -> Callable[[], Any]:
    """Build the product with weights in the layout that oneDNN prefers."""
    usable = settings.dtype == "float32" or (settings.dtype == "bfloat16" and supports_onednn_bfloat16())
    if settings.device.type != "cpu" or not torch.backends.mkldnn.enabled or not usable:
        raise Infeasible("reorders excluded: only oneDNN on a CPU accepts prepared weights, in float32 or bfloat16")
    packed = torch.ops.mkldnn._reorder_linear_weight(b.t().contiguous(), a.shape[0])
    operator = torch.ops.mkldnn._linear_pointwise.default
    return lambda: operator(a, packed, None, "none", [], "")


def _build_int8_product(arguments: MatrixProductArguments, settings: Settings, seed: int) -> Operator:
    """Build the int8 product; weights are always prepared, as in quantized models."""
    problem, generator = arguments.problem, torch.Generator().manual_seed(seed)
    low, high, dtype = INT8_LIMITS[arguments.int8_source]
    a = torch.randint(low, high + 1, problem.source_shape, generator=generator).to(dtype)
    b = torch.randint(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, problem.weights_shape, generator=generator)
    b = b.to(torch.int8)
    divisor = float(2 ** round(148.0 * 37.0 * problem.k**0.5 / 40.0).bit_length())
    scales, zeros = torch.ones(problem.n), torch.zeros(problem.n, dtype=torch.int64)
    try:
        packed = torch.ops.onednn.qlinear_prepack(b.t().contiguous(), list(a.shape))
        operator = torch.ops.onednn.qlinear_pointwise.default
        rest: Tuple[Any, ...] = (1.0, 0, packed, scales, zeros, None, divisor, 0, torch.int8, "none", [], "")
        operator(a, *rest)
    except (RuntimeError, AttributeError) as error:
        message = str(error).strip().splitlines()[0]
        raise Infeasible(f"{arguments.int8_source}s8s8: torch has no such product ({message})") from error

    def check(c: Tensor) -> Check:
        rows = torch.randint(problem.m, (min(CHECKED_ROWS, problem.m),), generator=generator)
        exact = a[rows].double() @ b.double()
        wanted = torch.round(exact / divisor).clamp(-128, 127)
        return Check(float((wanted - c[rows].double()).abs().max()), 0.0, "exact integer sums")

    return lambda: operator(a, *rest), check
