"""The convolution primitive on torch: every direction and layout, with and without reorders.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Check, Infeasible, RankContext
from corewise.measured.runtimes.torch.primitives.convolution_int8 import build_int8_convolution
from corewise.measured.runtimes.torch.primitives.convolution_layouts import (
    ConvolutionLayout,
    choose_layout,
    choose_least_reordered,
)
from corewise.measured.runtimes.torch.primitives.primitive_job import (
    PrimitiveJob,
    build_benchdnn_query,
    compute_roundoffs,
    require_operator,
    require_room,
)
from corewise.measured.runtimes.torch.settings import Settings, read_settings
from corewise.measured.workloads.primitives.benchdnn import build_benchdnn_command
from corewise.measured.workloads.primitives.convolution import (
    CONVOLUTION,
    WITH_BIAS,
    ConvolutionArguments,
    count_moved_bytes,
    format_benchdnn_types,
    is_forward,
    separate_types,
)
from corewise.measured.workloads.primitives.convolution_problem import ConvolutionProblem
from corewise.measured.workloads.primitives.convolution_reference import (
    BIAS,
    DATA,
    FORWARD,
    REFERENCE,
    WEIGHTS,
    count_terms,
    find_worst_error,
)
from corewise.measured.workloads.primitives.matmul import compute_product_tolerance

BENCHDNN_TIMES = 10
BY_NUM_DIMENSIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
# Gradients of source, weights and bias that torch.ops.aten.convolution_backward computes.
OUTPUT_MASKS = {"BWD_D": [True, False, False], "BWD_W": [False, True, False], "BWD_WB": [False, True, True]}
Tensors = Mapping[str, Tensor]


def prepare_convolution(params: TrialParameters, context: RankContext) -> PrimitiveJob:
    """Prepare the job; raise Infeasible with the reason if torch has no such convolution."""
    require_operator(params, CONVOLUTION.name)
    refusal = CONVOLUTION.explain_refusal(params)
    if refusal is not None:
        raise Infeasible(refusal)
    arguments = CONVOLUTION.read_arguments(params.arguments)
    settings = read_settings(params, context)
    _refuse(arguments, settings)
    require_room(CONVOLUTION, params, settings, context)
    made = build_int8_convolution if settings.dtype == "int8" else _build_float_convolution
    return PrimitiveJob(
        settings,
        lambda seed: made(arguments, settings, seed),
        context.rank,
        _describe_point(arguments, settings),
        _prepare_benchdnn(arguments, settings, params.threads),
        count_moved_bytes(arguments.problem, arguments.direction, settings.dtype),
    )


def build_arguments(problem: ConvolutionProblem) -> Dict[str, Any]:
    """Build torch's arguments: stride, padding, dilation and groups."""
    dims = problem.dimensions
    return {
        "stride": [d.stride for d in dims],
        "padding": [d.padding for d in dims],
        "dilation": [d.dilation + 1 for d in dims],
        "groups": problem.g,
    }


def _refuse(arguments: ConvolutionArguments, settings: Settings) -> None:
    for d in arguments.problem.dimensions:
        if not d.pads_evenly:
            raise Infeasible(
                f"padding of {d.padding} before and {d.padding_after} after: torch pads both sides of a "
                "convolution equally"
            )
    if settings.device.type == "cpu" and settings.dtype == "float64" and arguments.reorders == "excluded":
        raise Infeasible("reorders excluded in float64: oneDNN has no such convolution on a CPU")
    trains = arguments.direction in ("FWD_B", "FWD_D") and arguments.reorders == "included"
    if trains and settings.memory_format == "blocked" and settings.dtype != "float32":
        raise Infeasible(
            f"direction {arguments.direction} in {settings.dtype} and memory_format blocked: torch trains "
            "only float32 weights in this layout; use direction FWD_I"
        )


def _describe_point(arguments: ConvolutionArguments, settings: Settings) -> Mapping[str, Any]:
    return {
        "problem": str(arguments.problem),
        "types": format_benchdnn_types(settings.dtype, arguments.int8_source),
        "direction": arguments.direction,
    }


def _prepare_benchdnn(
    arguments: ConvolutionArguments, settings: Settings, num_threads: int
) -> Optional[Callable[[], Mapping[str, Any]]]:
    if not arguments.benchdnn:
        return None
    types = format_benchdnn_types(settings.dtype, arguments.int8_source)
    # Older versions of benchdnn know only `cfg`.
    type_options = {"dt": separate_types(types), "cfg": types}
    commands = [
        build_benchdnn_command(
            arguments.benchdnn,
            "conv",
            str(arguments.problem),
            {"dir": arguments.direction, option: value},
            num_times=BENCHDNN_TIMES,
        )
        for option, value in type_options.items()
    ]
    return build_benchdnn_query(commands, num_threads)


def _build_float_convolution(
    arguments: ConvolutionArguments, settings: Settings, seed: int
) -> Tuple[Callable[[], Any], Callable[[Any], Check]]:
    """Build the operator on normal random numbers, and its check."""
    tensors = _draw_tensors(arguments, settings, seed)
    layout = choose_layout(settings)
    operate = (
        _build_forward(arguments, tensors, layout)
        if is_forward(arguments.direction)
        else _build_backward(arguments, tensors, layout)
    )
    dtype = tensors["wei"].dtype

    def check(results: Any) -> Check:
        named = _name_results(arguments, layout, results)
        arrays = {name: to_numpy(tensor) for name, tensor in tensors.items()}
        computed = {name: to_numpy(tensor) for name, tensor in named.items()}
        worst = find_worst_error(arguments.problem, arrays, computed, seed)
        tolerance = compute_product_tolerance(count_terms(arguments), **compute_roundoffs(settings, dtype))
        return Check(worst, tolerance, REFERENCE)

    return operate, check


def _draw_tensors(arguments: ConvolutionArguments, settings: Settings, seed: int) -> Dict[str, Tensor]:
    """Draw the tensors that the direction reads, in the plain layout."""
    problem, generator = arguments.problem, torch.Generator().manual_seed(seed)
    dtype = getattr(torch, settings.dtype)

    def draw_normal(shape: Tuple[int, ...]) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=settings.tensor_dtype)
        return drawn.to(settings.device, dtype)

    tensors = {"wei": draw_normal(problem.weights_shape), "src": draw_normal(problem.source_shape)}
    if not is_forward(arguments.direction):
        return {**tensors, "diff_dst": draw_normal(problem.destination_shape)}
    return {**tensors, "bia": draw_normal((problem.oc,))} if arguments.direction in WITH_BIAS else tensors


def _build_forward(arguments: ConvolutionArguments, tensors: Tensors, layout: ConvolutionLayout) -> Callable[[], Any]:
    convolve: Any = BY_NUM_DIMENSIONS[len(arguments.problem.dimensions)]
    options = build_arguments(arguments.problem)
    if arguments.reorders == "excluded":
        return layout.build_forward(convolve, tensors, options)
    weights, bias = layout.convert_weights(tensors["wei"]), tensors.get("bia")
    if arguments.direction == "FWD_I":
        weights, bias = layout.pack_weights(tensors["wei"], options), layout.convert_bias(bias)
    source, convert, to_plain = tensors["src"], layout.convert, layout.to_plain
    if layout.is_plain:
        return lambda: convolve(source, weights, bias, **options)
    return lambda: to_plain(convolve(convert(source), weights, bias, **options))


def _build_backward(arguments: ConvolutionArguments, tensors: Tensors, layout: ConvolutionLayout) -> Callable[[], Any]:
    options, wanted = build_arguments(arguments.problem), OUTPUT_MASKS[arguments.direction]
    backward = torch.ops.aten.convolution_backward.default
    weights, source, gradient = layout.convert_weights(tensors["wei"]), tensors["src"], tensors["diff_dst"]
    constant = (
        [arguments.problem.oc], options["stride"], options["padding"], options["dilation"], False,
        [0] * len(arguments.problem.dimensions), options["groups"], wanted,
    )  # fmt: skip
    if layout.is_plain:
        return lambda: backward(gradient, source, weights, *constant)
    convert, to_plain = layout.convert, layout.to_plain
    if arguments.reorders == "excluded":

        def bind_pair(pair: Any) -> Callable[[], Any]:
            return lambda: backward(*pair, weights, *constant)

        return choose_least_reordered(
            map(bind_pair, itertools.product(layout.list_variants(gradient), layout.list_variants(source)))
        )
    # The gradient of the source depends only on the shape of the source, so it is converted once.
    if arguments.direction == "BWD_D":
        converted = convert(source)
        return lambda: to_plain(backward(convert(gradient), converted, weights, *constant)[0])
    return lambda: [
        None if each is None else to_plain(each)
        for each in backward(convert(gradient), convert(source), weights, *constant)
    ]


def _name_results(arguments: ConvolutionArguments, layout: ConvolutionLayout, results: Any) -> Dict[str, Tensor]:
    """Name the results, converted to the plain layout."""
    if is_forward(arguments.direction):
        return {FORWARD: layout.to_plain(results)}
    if isinstance(results, Tensor):
        return {DATA: results}
    named = zip((DATA, WEIGHTS, BIAS), results, OUTPUT_MASKS[arguments.direction])
    return {name: layout.to_plain(tensor) for name, tensor, wanted in named if wanted}


def to_numpy(tensor: Tensor) -> Any:
    """Copy the values to the host; 16-bit floats become float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()
