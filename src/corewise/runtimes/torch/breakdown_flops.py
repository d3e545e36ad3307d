"""The floating-point operations of a torch operator, where they can be told from its arguments.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, Mapping, Optional

from torch import Tensor

from corewise.runtimes.torch.breakdown_work import Args, category_of, problem_of, tensors_in
from corewise.workloads.primitives.problem import parse_convolution

Count = Callable[[Args, List[Tensor]], Any]  # a number, of shapes that nobody has checked
MOVES_ONLY = ("normalisation", "activation", "pooling", "reorder or copy", "view")  # memory is their limit
_PASSES = frozenset((  # one pass over memory, where torch has no tag that says so
    "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "var", "std", "var_mean",
    "std_mean", "prod", "cumsum", "cumprod", "tril", "triu", "arange", "item", "_local_scalar_dense",
    "nll_loss", "nll_loss_forward", "nll_loss_backward", "nll_loss_nd", "nll_loss2d_forward",
    "nll_loss2d_backward", "cross_entropy_loss", "mse_loss", "mse_loss_backward", "l1_loss", "huber_loss",
    "smooth_l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "one_hot", "__and__",
    "__or__", "__xor__", "masked_select", "nonzero", "equal", "normal_", "uniform_", "bernoulli_", "rand",
    "randn", "randint", "rand_like", "randn_like", "take", "take_along_dim", "embedding_bag",
    "_embedding_bag", "_embedding_bag_forward_only", "scatter_add", "scatter_add_", "index_add",
    "index_copy_", "lerp_", "unfold", "repeat_interleave", "upsample_nearest2d", "upsample_bilinear2d",
))  # fmt: skip


def flops_of(name: str, args: Args, made: Any, is_one_pass: bool = False) -> Optional[float]:
    """Floating-point operations of one call, a multiplication and an addition as two.

    0 for an operator that is one pass over its tensors, which memory limits; None where nobody has counted.
    Of convolutions of images those that meet the source and not its padding, as benchdnn counts.
    """
    problem = problem_of(name, args, made)
    if problem:
        directions = int(args[10][0]) + int(args[10][1]) if name == "convolution_backward" else 1
        return parse_convolution(problem).flops * directions
    count = _FLOPS.get(name)
    if count is None:
        return 0.0 if is_one_pass or _is_one_pass(name) else None
    try:
        return float(count(args, tensors_in(made)))
    except (IndexError, TypeError, AttributeError, ValueError, RuntimeError):  # an overload not known here
        return None


def is_tagged_one_pass(func: Any) -> bool:
    """True where torch itself says that an operator goes over its tensors element by element."""
    return any(str(tag).rpartition(".")[2] in ("pointwise", "reduction") for tag in getattr(func, "tags", ()))


def _is_one_pass(name: str) -> bool:
    if name.startswith(("_foreach_", "_fused_")):  # the optimisers' updates, over lists of tensors
        return True
    return name in _PASSES or category_of(name, "forward", True) in MOVES_ONLY


def _convolution_once(positions: Tensor, weight: Tensor) -> float:
    """Every weight meets every position of the image that is walked over, of every sample."""
    batch = positions.shape[0] if positions.dim() == weight.dim() else 1
    return 2.0 * batch * math.prod(positions.shape[2 - weight.dim() :]) * weight.numel()


def _forward_conv(args: Args, made: List[Tensor]) -> Any:
    transposed = len(args) > 6 and args[6] is True
    return _convolution_once(args[0] if transposed else made[0], args[1])


def _transposed_conv(args: Args, made: List[Tensor]) -> Any:
    return _convolution_once(args[0], args[1])


def _backward_conv(args: Args, made: List[Tensor]) -> Any:
    grad, image, weight = args[0], args[1], args[2]
    return _convolution_once(image if args[7] is True else grad, weight) * sum(map(int, args[10][:2]))


def _product(first: int) -> Count:
    """Of a product whose left matrix is the argument at this place; the last one is summed over."""
    return lambda args, made: 2.0 * made[0].numel() * args[first].shape[-1]


def _summed_products(args: Args, made: List[Tensor]) -> Any:
    return 2.0 * args[1].numel() * args[2].shape[-1]


def _attention(causal_at: int, first: int = 0) -> Count:
    """Two products for each pair of a query and a key it sees; `causal_at`: the argument that says so."""

    def count(args: Args, made: List[Tensor]) -> Any:
        query, key, value = args[first : first + 3]
        num_queries, num_keys = query.shape[-2], key.shape[-2]
        pairs = float(num_queries * num_keys)
        if len(args) > causal_at and args[causal_at] is True:
            pairs = float(sum(min(number + 1, num_keys) for number in range(num_queries)))
        return 2.0 * math.prod(query.shape[:-2]) * pairs * (query.shape[-1] + value.shape[-1])

    return count


def _attention_backward(causal_at: int) -> Count:
    forward = _attention(causal_at, first=1)
    return lambda args, made: 2.5 * forward(args, made)  # five products where forward has two


def _attention_layer(samples: Tensor, keys: Tensor, width: int, weights: List[Tensor]) -> float:
    """Projections of every token, and two products for each pair of tokens."""
    num_tokens = math.prod(samples.shape[:-1])
    return (
        2.0 * num_tokens * sum(each.numel() for each in weights) + 4.0 * num_tokens * keys.shape[-2] * width
    )


def _native_attention(args: Args, made: List[Tensor]) -> Any:
    return _attention_layer(args[0], args[1], int(args[3]), [args[5], args[7]])


def _encoder_layer(args: Args, made: List[Tensor]) -> Any:
    return _attention_layer(args[0], args[0], int(args[1]), [args[3], args[5], args[14], args[16]])


def _recurrent(args: Args, made: List[Tensor]) -> Any:
    """Every matrix meets every sample at every step; packed sequences have both in one dimension."""
    is_packed = isinstance(args[3], (list, tuple))  # data, batch sizes, state, parameters
    parameters = args[3] if is_packed else args[2]
    return 2.0 * math.prod(args[0].shape[:-1]) * sum(each.numel() for each in parameters if each.dim() == 2)


def _recurrent_cell(args: Args, made: List[Tensor]) -> Any:
    return 2.0 * math.prod(args[0].shape[:-1]) * (args[2].numel() + args[3].numel())


def _mkldnn_rnn(args: Args, made: List[Tensor]) -> Any:
    return 2.0 * args[0].shape[0] * args[0].shape[1] * (args[1].numel() + args[2].numel())


def _cudnn_rnn(args: Args, made: List[Tensor]) -> Any:
    return 2.0 * math.prod(args[0].shape[:-1]) * sum(each.numel() for each in args[1] if each.dim() == 2)


_FLOPS: Mapping[str, Count] = {
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d", "mkldnn_convolution", "cudnn_convolution"),
                    _forward_conv),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed_conv),
    "convolution_backward": _backward_conv,
    **dict.fromkeys(("mm", "bmm", "linear", "matmul", "mv", "dot"), _product(0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), _product(1)),
    "addbmm": _summed_products,
    "scaled_dot_product_attention": _attention(5),
    "_scaled_dot_product_attention_math": _attention(5),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(4),
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_efficient_attention": _attention(6),
    "_scaled_dot_product_cudnn_attention": _attention(6),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward(7),
    "_scaled_dot_product_flash_attention_backward": _attention_backward(11),
    "_scaled_dot_product_efficient_attention_backward": _attention_backward(11),
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward(14),
    "_native_multi_head_attention": _native_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _recurrent_cell),
    "mkldnn_rnn_layer": _mkldnn_rnn,
    "mkldnn_rnn_layer_backward": lambda args, made: 2.0 * _mkldnn_rnn(args, made),
    "_cudnn_rnn": _cudnn_rnn,
    "_cudnn_rnn_backward": lambda args, made: 2.0 * _cudnn_rnn(args, made),
}  # fmt: skip
