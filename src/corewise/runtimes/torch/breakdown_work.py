"""What kind of work a torch operator is, how much of it, and how it is written down.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, Mapping, Sequence, Tuple

import torch
from torch import Tensor

from corewise.workloads.breakdown import conv_problem
from corewise.workloads.primitives.problem import parse_convolution

Args = Tuple[Any, ...]
_BY_NAME: Tuple[Tuple[str, Tuple[str, ...]], ...] = (  # the first category with a word in the name
    ("convolution", ("conv",)),
    ("recurrent layer", ("rnn", "lstm", "gru")),
    ("attention", ("attention", "sdpa")),
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
    "result_type",
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


def traffic(name: str, category: str, args: Any, made: Any) -> float:
    """Bytes when every tensor is read or written once; a view moves nothing."""
    if category == "view":
        return 0.0
    read, written = tensors_in(args), tensors_in(made)
    if name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"):
        return 0.0
    total = sum(span_bytes(each) for each in _distinct(read))
    return float(total + sum(span_bytes(each) for each in _distinct(written)))


def _distinct(found: Sequence[Tensor]) -> List[Tensor]:
    seen = {}
    for each in found:
        seen[each.data_ptr(), tuple(each.shape), each.stride()] = each
    return list(seen.values())


def flops_of(name: str, args: Args, made: Any) -> float:
    """Floating-point operations of one call, a multiplication and an addition as two; 0 where not counted.

    Of convolutions of images those that meet the source and not its padding, as benchdnn counts.
    """
    problem = problem_of(name, args, made)
    if problem:
        directions = int(args[10][0]) + int(args[10][1]) if name == "convolution_backward" else 1
        return parse_convolution(problem).flops * directions
    count = _FLOPS.get(name)
    try:
        return float(count(args, tensors_in(made))) if count is not None else 0.0
    except (IndexError, TypeError, AttributeError, ValueError):  # another overload of that name
        return 0.0


def _forward_conv(args: Args, made: List[Tensor]) -> Any:
    weight = args[1]
    transposed = len(args) > 6 and args[6] is True
    positions = args[0] if transposed else made[0]
    return 2.0 * positions.shape[0] * math.prod(positions.shape[2:]) * weight.numel()


def _backward_conv(args: Args, made: List[Tensor]) -> Any:
    grad, image, weight = args[0], args[1], args[2]
    positions = image if args[7] is True else grad
    once = 2.0 * positions.shape[0] * math.prod(positions.shape[2:]) * weight.numel()
    return once * (int(args[10][0]) + int(args[10][1]))


def _product(first: int) -> Callable[[Args, List[Tensor]], Any]:
    """Of a product whose left matrix is the argument at this place; the last one is summed over."""
    return lambda args, made: 2.0 * made[0].numel() * args[first].shape[-1]


def _attention(args: Args, made: List[Tensor]) -> Any:
    query, key, value = args[0], args[1], args[2]
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return 2.0 * pairs * (query.shape[-1] + value.shape[-1])


def _attention_backward(args: Args, made: List[Tensor]) -> Any:
    return 2.5 * _attention(args[1:4], made)  # five products where forward has two


def _lstm_input(args: Args, made: List[Tensor]) -> Any:
    steps_and_samples = args[0].shape[0] * args[0].shape[1]
    return 2.0 * steps_and_samples * sum(w.numel() for w in args[2] if w.dim() == 2)


def _mkldnn_rnn(args: Args, made: List[Tensor]) -> Any:
    return 2.0 * args[0].shape[0] * args[0].shape[1] * (args[1].numel() + args[2].numel())


_FLOPS: Mapping[str, Callable[[Args, List[Tensor]], Any]] = {
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d", "mkldnn_convolution", "cudnn_convolution"),
                    _forward_conv),
    "convolution_backward": _backward_conv,
    **dict.fromkeys(("mm", "bmm", "linear", "matmul", "mv", "dot"), _product(0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _product(1)),
    **dict.fromkeys(("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
                     "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
                     "_scaled_dot_product_cudnn_attention"), _attention),
    **dict.fromkeys(("_scaled_dot_product_flash_attention_for_cpu_backward",
                     "_scaled_dot_product_flash_attention_backward",
                     "_scaled_dot_product_efficient_attention_backward"), _attention_backward),
    "lstm": _lstm_input,
    "mkldnn_rnn_layer": _mkldnn_rnn,
    "mkldnn_rnn_layer_backward": lambda args, made: 2.0 * _mkldnn_rnn(args, made),
}  # fmt: skip


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
        if image.dim() != 4 or transposed or isinstance(padding, str):
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
