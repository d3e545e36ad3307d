"""One convolution on torch: every direction and layout, with and without reorders.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional

from corewise.runtimes.base import Check, Infeasible, RankContext
from corewise.runtimes.torch.convolution_int8 import int8_convolution
from corewise.runtimes.torch.convolution_layouts import Layouts, layouts_for, least_reordered
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
from corewise.workloads.primitives.convolution import (
    CONVOLUTION,
    WITH_BIAS,
    Asked,
    is_forward,
    moved_bytes,
    separated_types,
    types_of,
)
from corewise.workloads.primitives.matmul import product_tolerance
from corewise.workloads.primitives.problem import ConvolutionProblem
from corewise.workloads.primitives.sampled_sums import (
    BIAS,
    DATA,
    FORWARD,
    REFERENCE,
    WEIGHTS,
    num_terms,
    worst_error,
)

BENCHDNN_TIMES = 10
BY_NUM_DIMENSIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
WANTED = {  # of source, weights and bias, for torch.ops.aten.convolution_backward
    "BWD_D": [True, False, False],
    "BWD_W": [False, True, False],
    "BWD_WB": [False, True, True],
}
Tensors = Mapping[str, Tensor]


def prepare_convolution(params: Mapping[str, Any], context: RankContext) -> PrimitiveJob:
    """The job; raises Infeasible with the reason where torch has no such convolution."""
    require_operator(params, CONVOLUTION.name)
    refusal = CONVOLUTION.refusal(params)
    if refusal is not None:
        raise Infeasible(refusal)
    asked = CONVOLUTION.asked(workload_args(params))
    settings = read_settings(params, context)
    _refuse(asked, settings)
    require_room(CONVOLUTION, params, settings, context)
    made = int8_convolution if settings.dtype == "int8" else _float_convolution
    return PrimitiveJob(
        settings,
        lambda seed: made(asked, settings, seed),
        context.rank,
        _facts(asked, settings),
        _benchdnn(asked, settings, int(params["threads"])),
        moved_bytes(asked.problem, asked.direction, settings.dtype),
    )


def arguments_of(problem: ConvolutionProblem) -> Dict[str, Any]:
    """Stride, padding, dilation and groups as torch takes them."""
    dims = problem.dimensions
    return {
        "stride": [d.stride for d in dims],
        "padding": [d.padding for d in dims],
        "dilation": [d.dilation + 1 for d in dims],
        "groups": problem.g,
    }


def _refuse(asked: Asked, settings: Settings) -> None:
    for d in asked.problem.dimensions:
        if not d.pads_evenly:
            raise Infeasible(
                f"padding of {d.padding} before and {d.padding_after} behind: torch's convolutions pad both "
                "sides alike"
            )
    if settings.device.type == "cpu" and settings.dtype == "float64" and asked.reorders == "excluded":
        raise Infeasible("reorders excluded in float64: oneDNN has no such convolution on a CPU")
    trains = asked.direction in ("FWD_B", "FWD_D") and asked.reorders == "included"
    if trains and settings.memory_format == "blocked" and settings.dtype != "float32":
        raise Infeasible(
            f"direction {asked.direction} in {settings.dtype} and memory_format blocked: torch takes weights "
            "that are trained in float32 only there; FWD_I exists"
        )


def _facts(asked: Asked, settings: Settings) -> Mapping[str, Any]:
    return {
        "problem": str(asked.problem),
        "types": types_of(settings.dtype, asked.int8_source),
        "direction": asked.direction,
    }


def _benchdnn(
    asked: Asked, settings: Settings, num_threads: int
) -> Optional[Callable[[], Mapping[str, Any]]]:
    if not asked.benchdnn:
        return None
    types = types_of(settings.dtype, asked.int8_source)
    named = {"dt": separated_types(types), "cfg": types}  # older programs know `cfg` alone
    commands = [
        benchdnn_words(
            asked.benchdnn,
            "conv",
            str(asked.problem),
            {"dir": asked.direction, option: value},
            num_times=BENCHDNN_TIMES,
        )
        for option, value in named.items()
    ]
    return benchdnn_facts(commands, num_threads)


def _float_convolution(
    asked: Asked, settings: Settings, seed: int
) -> Tuple[Callable[[], Any], Callable[[Any], Check]]:
    """The operator on random normal numbers, and its check."""
    given = _drawn(asked, settings, seed)
    layouts = layouts_for(asked, settings)
    operate = (
        _forward(asked, given, layouts) if is_forward(asked.direction) else _backward(asked, given, layouts)
    )
    dtype = given["wei"].dtype

    def check(results: Any) -> Check:
        named = _named(asked, layouts, results)
        arrays = {name: as_numpy(tensor) for name, tensor in given.items()}
        computed = {name: as_numpy(tensor) for name, tensor in named.items()}
        worst = worst_error(asked.problem, arrays, computed, seed)
        tolerance = product_tolerance(num_terms(asked), **roundoffs(settings, dtype))
        return Check(worst, tolerance, REFERENCE)

    return operate, check


def _drawn(asked: Asked, settings: Settings, seed: int) -> Dict[str, Tensor]:
    """The tensors that the direction reads, in a plain layout."""
    problem, generator = asked.problem, torch.Generator().manual_seed(seed)
    dtype = getattr(torch, settings.dtype)

    def normal(shape: Tuple[int, ...]) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=settings.tensor_dtype)
        return drawn.to(settings.device, dtype)

    given = {"wei": normal(problem.weights_shape), "src": normal(problem.source_shape)}
    if not is_forward(asked.direction):
        return {**given, "diff_dst": normal(problem.destination_shape)}
    return {**given, "bia": normal((problem.oc,))} if asked.direction in WITH_BIAS else given


def _forward(asked: Asked, given: Tensors, layouts: Layouts) -> Callable[[], Any]:
    convolve: Any = BY_NUM_DIMENSIONS[len(asked.problem.dimensions)]
    options = arguments_of(asked.problem)
    if asked.reorders == "excluded":
        return layouts.forward_alone(convolve, given, options)
    weights, bias = layouts.weights(given["wei"]), given.get("bia")
    if asked.direction == "FWD_I":
        weights, bias = layouts.inference_weights(given["wei"], options), layouts.bias(bias)
    source, arrange, plain = given["src"], layouts.arrange, layouts.plain
    if layouts.is_plain:
        return lambda: convolve(source, weights, bias, **options)
    return lambda: plain(convolve(arrange(source), weights, bias, **options))


def _backward(asked: Asked, given: Tensors, layouts: Layouts) -> Callable[[], Any]:
    options, wanted = arguments_of(asked.problem), WANTED[asked.direction]
    backward = torch.ops.aten.convolution_backward.default
    weights, source, gradient = layouts.weights(given["wei"]), given["src"], given["diff_dst"]
    constant = (
        [asked.problem.oc], options["stride"], options["padding"], options["dilation"], False,
        [0] * len(asked.problem.dimensions), options["groups"], wanted,
    )  # fmt: skip
    if layouts.is_plain:
        return lambda: backward(gradient, source, weights, *constant)
    arrange, plain = layouts.arrange, layouts.plain
    if asked.reorders == "excluded":

        def on(pair: Any) -> Callable[[], Any]:
            return lambda: backward(*pair, weights, *constant)

        return least_reordered(
            on(pair) for pair in itertools.product(layouts.ready(gradient), layouts.ready(source))
        )
    if asked.direction == "BWD_D":  # of the source, only its shape is used
        arranged = arrange(source)
        return lambda: plain(backward(arrange(gradient), arranged, weights, *constant)[0])
    return lambda: [
        None if each is None else plain(each)
        for each in backward(arrange(gradient), arrange(source), weights, *constant)
    ]


def _named(asked: Asked, layouts: Layouts, results: Any) -> Dict[str, Tensor]:
    """The results by name, in a plain layout."""
    if is_forward(asked.direction):
        return {FORWARD: layouts.plain(results)}
    if isinstance(results, Tensor):
        return {DATA: results}
    named = zip((DATA, WEIGHTS, BIAS), results, WANTED[asked.direction])
    return {name: layouts.plain(tensor) for name, tensor, wanted in named if wanted}


def as_numpy(tensor: Tensor) -> Any:
    """The values on the host; 16-bit floats as float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()
