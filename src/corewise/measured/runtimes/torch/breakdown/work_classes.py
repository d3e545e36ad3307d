"""Classify torch operators by category and describe their arguments.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, List, Mapping, Sequence, Tuple

import torch
from torch import Tensor

from corewise.measured.workloads.model_breakdown import format_conv_problem

Args = Tuple[Any, ...]
# The first category with a pattern in the operator's name applies.
_NAME_PATTERNS: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("convolution", ("conv",)),
    ("recurrent layer", ("rnn", "lstm", "gru")),
    ("attention", ("attention", "sdpa", "_transformer_encoder_layer")),
    ("matrix product", ("addmm", "bmm", "mm", "linear", "matmul", "addmv", "mv", "dot", "einsum")),
    ("normalisation", ("norm",)),
    ("pooling", ("pool",)),
    ("activation", ("relu", "gelu", "silu", "sigmoid", "tanh", "softmax", "threshold", "dropout", "softplus",
                    "elu", "hardtanh", "hardswish", "mish")),
)  # fmt: skip
_COPIES = frozenset((
    "_to_copy", "to", "copy_", "clone", "contiguous", "cat", "stack", "flip", "index_select", "index",
    "gather", "embedding", "embedding_dense_backward", "constant_pad_nd", "pad", "repeat", "zeros",
    "zeros_like", "ones", "ones_like", "fill_", "zero_", "full", "full_like", "new_zeros", "empty",
    "empty_like", "empty_strided",
    "select_backward", "slice_backward", "index_put_", "index_put", "index_add_", "scatter", "scatter_",
    "masked_fill", "roll", "new_empty", "new_empty_strided", "new_full",
))  # fmt: skip
VIEWS = frozenset((
    "view", "_unsafe_view", "t", "transpose", "permute", "detach", "expand", "as_strided", "unsqueeze",
    "squeeze", "select", "slice", "alias", "flatten", "narrow", "split", "split_with_sizes", "unbind",
    "chunk",
    "lift_fresh", "view_as", "expand_as", "unflatten", "detach_", "movedim", "reshape_as", "numpy_T",
    "result_type", "unsafe_split", "transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes",
))  # fmt: skip


def parse_operator_name(func: Any) -> str:
    """Return the operator's name without namespace and overload: "convolution"."""
    return str(func).split(".")[1] if str(func).count(".") else str(func)


def find_category(name: str, phase: str, moves_data: bool) -> str:
    """Find the category; `moves_data`: False if the result is an unmodified view of the input."""
    if phase == "update":
        return "optimiser"
    if name in VIEWS or not moves_data:
        return "view"
    if name in _COPIES or name == "reshape":
        return "reorder or copy"
    for category, patterns in _NAME_PATTERNS:
        if any(pattern in name for pattern in patterns):
            return category
    return "other arithmetic"


def list_tensors(value: Any) -> List[Tensor]:
    """List every tensor in arguments or results, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in list_tensors(part)]
    return []


def count_distinct_bytes(tensor: Tensor) -> int:
    """Count the bytes of distinct elements; expanded ones count once."""
    distinct = [n for n, step in zip(tensor.shape, tensor.stride()) if step != 0 or n == 0]
    return int(math.prod(distinct)) * tensor.element_size()


def describe_convolution(name: str, args: Args, made: Any) -> str:
    """Describe a 2-D convolution in benchdnn's notation; "" for other operators."""
    try:
        if name in ("conv2d", "convolution"):
            image, weight, out = args[0], args[1], list_tensors(made)[0]
            stride, padding, dilation = args[3:6] if len(args) > 5 else _fill_conv2d_defaults(args)
            groups = (args[8] if name == "convolution" else args[6]) if len(args) > 6 else 1
            transposed = name == "convolution" and bool(args[6])
        elif name == "convolution_backward":
            out, image, weight = args[0], args[1], args[2]
            stride, padding, dilation = args[4:7]
            transposed, groups = bool(args[7]), args[9]
        else:
            return ""
        # A single image has no batch dimension.
        if image.dim() == 3 and out.dim() == 3:
            image, out = image[None], out[None]
        if image.dim() != 4 or transposed or isinstance(padding, str) or weight.dim() != 4:
            return ""
        return format_conv_problem(
            batch=image.shape[0],
            in_size=image.shape[2:],
            out_size=out.shape[2:],
            kernel=weight.shape[2:],
            channels=(image.shape[1], out.shape[1]),
            groups=int(groups),
            stride=stride,
            padding=padding,
            dilation=dilation,
        )
    except (IndexError, TypeError, AttributeError):
        return ""


def _fill_conv2d_defaults(args: Args) -> List[Any]:
    given = list(args[3:6])
    return given + [[1, 1], [0, 0], [1, 1]][len(given) :]


def find_layout(tensors: Sequence[Tensor]) -> str:
    """Find the layout of the images among tensors, or of all tensors if there are none."""
    images = [t for t in tensors if t.dim() == 4 and t.shape[1] > 1 and t.shape[2] * t.shape[3] > 1]
    if images and all(t.is_contiguous(memory_format=torch.channels_last) for t in images):
        return "channels_last"
    return "contiguous" if all(t.is_contiguous() for t in tensors) else "strided"


def format_shapes(tensors: Sequence[Tensor]) -> str:
    """Format the sizes of the first three tensors: "16x64x56x56, 64x64x3x3"."""
    return ", ".join(["x".join(map(str, t.shape)) or "1" for t in tensors if t.dim() > 0][:3])


def format_parameters(func: Any, args: Args) -> str:
    """Format parameters that are no tensors and differ from the default: "stride 2, padding 1"."""
    parts = []
    for described, value in zip(func._schema.arguments, args):
        is_plain = isinstance(value, (int, float, bool, str)) or (
            isinstance(value, (list, tuple)) and all(isinstance(v, (int, float, bool)) for v in value)
        )
        usual = described.default_value if described.has_default_value() else None
        if is_plain and value not in (usual, [], ()) and not _is_uninformative(described.name, value):
            parts.append(f"{described.name} {_format_value(value)}")
    return ", ".join(parts[:6])


_UNINFORMATIVE_PARAMETERS = (
    "eps",
    "momentum",
    "cudnn_enabled",
    "bias_sizes",
    "output_mask",
    "benchmark",
    "deterministic",
    "train",
)


def _is_uninformative(name: str, value: Any) -> bool:
    usual: Mapping[str, float] = {"stride": 1, "dilation": 1, "padding": 0, "output_padding": 0, "groups": 1}
    if value is False or name in _UNINFORMATIVE_PARAMETERS:
        return True
    values = value if isinstance(value, (list, tuple)) else [value]
    return name in usual and all(each == usual[name] for each in values)


def _format_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return _format_value(value[0]) if len(set(value)) == 1 else "x".join(map(_format_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
