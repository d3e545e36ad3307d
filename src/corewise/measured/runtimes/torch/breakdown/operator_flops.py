"""Count the floating-point operations of a torch operator from its arguments.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, Mapping, Optional

from torch import Tensor

from corewise.measured.runtimes.torch.breakdown.work_classes import (
    Args,
    describe_convolution,
    find_category,
    list_tensors,
)
from corewise.measured.workloads.primitives.convolution_problem import parse_convolution

FlopCounter = Callable[[Args, List[Tensor]], Any]
MEMORY_BOUND_CATEGORIES = ("normalisation", "activation", "pooling", "reorder or copy", "view")
# Operators that make one pass over memory, but that torch does not tag as such.
_ONE_PASS_OPERATORS = frozenset((
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


def count_flops(name: str, args: Args, made: Any, is_one_pass: bool = False) -> Optional[float]:
    """Count the floating-point operations of one call; a multiplication and an addition count as two.

    The result is 0 for operators that make one pass over their tensors, and None for unknown operators.
    2-D convolutions are counted without padding, as benchdnn does.
    """
    problem = describe_convolution(name, args, made)
    if problem:
        directions = int(args[10][0]) + int(args[10][1]) if name == "convolution_backward" else 1
        return parse_convolution(problem).flops * directions
    count = _FLOPS.get(name)
    if count is None:
        return 0.0 if is_one_pass or _is_one_pass(name) else None
    try:
        return float(count(args, list_tensors(made)))
    except (IndexError, TypeError, AttributeError, ValueError, RuntimeError):
        # The operator has an overload with other arguments.
        return None


def is_tagged_one_pass(func: Any) -> bool:
    """Return whether torch tags the operator as pointwise or as a reduction."""
    return any(str(tag).rpartition(".")[2] in ("pointwise", "reduction") for tag in getattr(func, "tags", ()))


def _is_one_pass(name: str) -> bool:
    # These are the optimizers' updates of lists of tensors.
    if name.startswith(("_foreach_", "_fused_")):
        return True
    return name in _ONE_PASS_OPERATORS or find_category(name, "forward", True) in MEMORY_BOUND_CATEGORIES


def _count_convolution(positions: Tensor, weight: Tensor) -> float:
    """Count one product per weight and position of every sample."""
    batch = positions.shape[0] if positions.dim() == weight.dim() else 1
    return 2.0 * batch * math.prod(positions.shape[2 - weight.dim() :]) * weight.numel()


def _count_forward_convolution(args: Args, made: List[Tensor]) -> Any:
    transposed = len(args) > 6 and args[6] is True
    return _count_convolution(args[0] if transposed else made[0], args[1])


def _count_transposed_convolution(args: Args, made: List[Tensor]) -> Any:
    return _count_convolution(args[0], args[1])


def _count_backward_convolution(args: Args, made: List[Tensor]) -> Any:
    grad, image, weight = args[0], args[1], args[2]
    return _count_convolution(image if args[7] is True else grad, weight) * sum(map(int, args[10][:2]))


def _build_product_counter(first: int) -> FlopCounter:
    """Build the counter of a product whose left matrix is the argument at this index."""
    return lambda args, made: 2.0 * made[0].numel() * args[first].shape[-1]


def _count_summed_products(args: Args, made: List[Tensor]) -> Any:
    return 2.0 * args[1].numel() * args[2].shape[-1]


def _build_attention_counter(causal_at: int, first: int = 0) -> FlopCounter:
    """Build the counter of attention: two products per visible pair; `causal_at`: index of `is_causal`."""

    def count(args: Args, made: List[Tensor]) -> Any:
        query, key, value = args[first : first + 3]
        num_queries, num_keys = query.shape[-2], key.shape[-2]
        pairs = float(num_queries * num_keys)
        if len(args) > causal_at and args[causal_at] is True:
            pairs = float(sum(min(number + 1, num_keys) for number in range(num_queries)))
        return 2.0 * math.prod(query.shape[:-2]) * pairs * (query.shape[-1] + value.shape[-1])

    return count


def _build_attention_backward_counter(causal_at: int) -> FlopCounter:
    forward = _build_attention_counter(causal_at, first=1)
    # The backward pass has five products, the forward pass two.
    return lambda args, made: 2.5 * forward(args, made)


def _count_attention_layer(samples: Tensor, keys: Tensor, width: int, weights: List[Tensor]) -> float:
    """Count the projections of every token, and two products per pair of tokens."""
    num_tokens = math.prod(samples.shape[:-1])
    return 2.0 * num_tokens * sum(each.numel() for each in weights) + 4.0 * num_tokens * keys.shape[-2] * width


def _count_native_attention(args: Args, made: List[Tensor]) -> Any:
    return _count_attention_layer(args[0], args[1], int(args[3]), [args[5], args[7]])


def _count_encoder_layer(args: Args, made: List[Tensor]) -> Any:
    return _count_attention_layer(args[0], args[0], int(args[1]), [args[3], args[5], args[14], args[16]])


def _count_recurrent(args: Args, made: List[Tensor]) -> Any:
    """Count one product per matrix, sample and step; packed sequences have both in one dimension."""
    # The arguments of packed sequences are data, batch sizes, state, parameters.
    is_packed = isinstance(args[3], (list, tuple))
    parameters = args[3] if is_packed else args[2]
    return 2.0 * math.prod(args[0].shape[:-1]) * sum(each.numel() for each in parameters if each.dim() == 2)


def _count_recurrent_cell(args: Args, made: List[Tensor]) -> Any:
    return 2.0 * math.prod(args[0].shape[:-1]) * (args[2].numel() + args[3].numel())


def _count_mkldnn_rnn(args: Args, made: List[Tensor]) -> Any:
    return 2.0 * args[0].shape[0] * args[0].shape[1] * (args[1].numel() + args[2].numel())


def _count_cudnn_rnn(args: Args, made: List[Tensor]) -> Any:
    return 2.0 * math.prod(args[0].shape[:-1]) * sum(each.numel() for each in args[1] if each.dim() == 2)


_FLOPS: Mapping[str, FlopCounter] = {
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d", "mkldnn_convolution", "cudnn_convolution"),
                    _count_forward_convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
                    _count_transposed_convolution),
    "convolution_backward": _count_backward_convolution,
    **dict.fromkeys(("mm", "bmm", "linear", "matmul", "mv", "dot"), _build_product_counter(0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), _build_product_counter(1)),
    "addbmm": _count_summed_products,
    "scaled_dot_product_attention": _build_attention_counter(5),
    "_scaled_dot_product_attention_math": _build_attention_counter(5),
    "_scaled_dot_product_flash_attention_for_cpu": _build_attention_counter(4),
    "_scaled_dot_product_flash_attention": _build_attention_counter(4),
    "_scaled_dot_product_efficient_attention": _build_attention_counter(6),
    "_scaled_dot_product_cudnn_attention": _build_attention_counter(6),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _build_attention_backward_counter(7),
    "_scaled_dot_product_flash_attention_backward": _build_attention_backward_counter(11),
    "_scaled_dot_product_efficient_attention_backward": _build_attention_backward_counter(11),
    "_scaled_dot_product_cudnn_attention_backward": _build_attention_backward_counter(14),
    "_native_multi_head_attention": _count_native_attention,
    "_transformer_encoder_layer_fwd": _count_encoder_layer,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _count_recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _count_recurrent_cell),
    "mkldnn_rnn_layer": _count_mkldnn_rnn,
    "mkldnn_rnn_layer_backward": lambda args, made: 2.0 * _count_mkldnn_rnn(args, made),
    "_cudnn_rnn": _count_cudnn_rnn,
    "_cudnn_rnn_backward": lambda args, made: 2.0 * _count_cudnn_rnn(args, made),
}  # fmt: skip
