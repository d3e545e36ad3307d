"""What kind of work a torch operator is, and how it is written down.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, List, Mapping, Sequence, Tuple

import torch
from torch import Tensor

from corewise.workloads.breakdown import conv_problem

Args = Tuple[Any, ...]
_BY_NAME: Tuple[Tuple[str, Tuple[str, ...]], ...] = (  # the first category with a word in the name
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


def operator_name(func: Any) -> str:
    """The operator without namespace and overload: "convolution"."""
    return str(func).split(".")[1] if str(func).count(".") else str(func)


def category_of(name: str, phase: str, moves_data: bool) -> str:
    """The kind of work; `moves_data`: False where the result is the input's memory, unwritten."""
    if phase == "update":
        return "optimiser"
    if name in VIEWS or not moves_data:
        return "view"
    if name in _COPIES or name == "reshape":
        return "reorder or copy"
    for category, words in _BY_NAME:
        if any(word in name for word in words):
            return category
    return "other arithmetic"


def tensors_in(value: Any) -> List[Tensor]:
    """Every tensor in arguments or results, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []


def span_bytes(tensor: Tensor) -> int:
    """The bytes of its distinct elements; what is expanded counts once."""
    distinct = [n for n, step in zip(tensor.shape, tensor.stride()) if step != 0 or n == 0]
    return int(math.prod(distinct)) * tensor.element_size()


def problem_of(name: str, args: Args, made: Any) -> str:
    """A convolution of images in benchdnn's notation; "" for anything else."""
    try:
        if name in ("conv2d", "convolution"):
            image, weight, out = args[0], args[1], tensors_in(made)[0]
            stride, padding, dilation = args[3:6] if len(args) > 5 else _conv2d_defaults(args)
            groups = (args[8] if name == "convolution" else args[6]) if len(args) > 6 else 1
            transposed = name == "convolution" and bool(args[6])
        elif name == "convolution_backward":
            out, image, weight = args[0], args[1], args[2]
            stride, padding, dilation = args[4:7]
            transposed, groups = bool(args[7]), args[9]
        else:
            return ""
        if image.dim() == 3 and out.dim() == 3:  # one image without a batch
            image, out = image[None], out[None]
        if image.dim() != 4 or transposed or isinstance(padding, str) or weight.dim() != 4:
            return ""
        return conv_problem(
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


def _conv2d_defaults(args: Args) -> List[Any]:
    given = list(args[3:6])
    return given + [[1, 1], [0, 0], [1, 1]][len(given) :]


def layout_of(found: Sequence[Tensor]) -> str:
    """The layout of the images among tensors, or of all of them."""
    images = [t for t in found if t.dim() == 4 and t.shape[1] > 1 and t.shape[2] * t.shape[3] > 1]
    if images and all(t.is_contiguous(memory_format=torch.channels_last) for t in images):
        return "channels_last"
    return "contiguous" if all(t.is_contiguous() for t in found) else "strided"


def shapes_of(found: Sequence[Tensor]) -> str:
    """Sizes for a reader, the first few: "16x64x56x56, 64x64x3x3"."""
    told = ["x".join(map(str, t.shape)) or "1" for t in found if t.dim() > 0][:3]
    return ", ".join(told)


def parameters_of(func: Any, args: Args) -> str:
    """Those that are no tensors and not as by default: "stride 2, padding 1"."""
    told = []
    for described, value in zip(func._schema.arguments, args):
        is_plain = isinstance(value, (int, float, bool, str)) or (
            isinstance(value, (list, tuple)) and all(isinstance(v, (int, float, bool)) for v in value)
        )
        usual = described.default_value if described.has_default_value() else None
        if is_plain and value not in (usual, [], ()) and not _is_dull(described.name, value):
            told.append(f"{described.name} {_plain(value)}")
    return ", ".join(told[:6])


_DULL = (
    "eps",
    "momentum",
    "cudnn_enabled",
    "bias_sizes",
    "output_mask",
    "benchmark",
    "deterministic",
    "train",
)


def _is_dull(name: str, value: Any) -> bool:
    usual: Mapping[str, float] = {"stride": 1, "dilation": 1, "padding": 0, "output_padding": 0, "groups": 1}
    if value is False or name in _DULL:
        return True
    values = value if isinstance(value, (list, tuple)) else [value]
    return name in usual and all(each == usual[name] for each in values)


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return _plain(value[0]) if len(set(value)) == 1 else "x".join(map(_plain, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
