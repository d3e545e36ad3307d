"""What an operator of torch does besides returning values: what it writes, whether it draws random numbers.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, Sequence, Tuple

import torch

_SEEDED = getattr(torch.Tag, "nondeterministic_seeded", None)
_KNOWN_NAMESPACES = {
    *("aten", "prims", "quantized", "quantized_decomposed", "onednn", "mkldnn", "torchvision"),
    "corewise",  # our own
}
# Operators that write to arguments though their schemas do not say so, when the named flag is set.
_UNMARKED_WRITES = {
    "aten::batch_norm": ("training", ("running_mean", "running_var")),
    "aten::_batch_norm_impl_index": ("training", ("running_mean", "running_var")),
    "aten::instance_norm": ("use_input_stats", ("running_mean", "running_var")),
}
# Operators that draw random numbers only if all these arguments are other than false or 0.
_RANDOM_IF = {
    "aten::dropout": ("p", "train"),
    "aten::feature_dropout": ("p", "train"),
    "aten::alpha_dropout": ("p", "train"),
    "aten::feature_alpha_dropout": ("p", "train"),
    "aten::native_dropout": ("p", "train"),
    "aten::rrelu": ("training",),
    "aten::rrelu_with_noise": ("training",),
    "aten::lstm": ("dropout", "train"),
    "aten::gru": ("dropout", "train"),
    "aten::rnn_tanh": ("dropout", "train"),
    "aten::rnn_relu": ("dropout", "train"),
    "aten::scaled_dot_product_attention": ("dropout_p",),
    "aten::_scaled_dot_product_flash_attention_for_cpu": ("dropout_p",),
}
# Operators that return what they are given where they draw nothing; neither schemas nor fake tensors say so.
_PASSING = {"aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout"}


def is_known(target: Any) -> bool:
    """Whether it is an operator whose schema tells what it does."""
    return isinstance(target, torch._ops.OpOverload)


def is_torchs_own(target: Any) -> bool:
    """Whether what it does is known; a custom operator may draw numbers or keep a state of its own."""
    return target.namespace in _KNOWN_NAMESPACES


def draws(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call takes numbers from torch's generator."""
    if _SEEDED is None or _SEEDED not in target.tags:
        return False
    given = dict(_bound(target, args, kwargs))
    name = target._schema.name.rstrip("_")  # those that write in place draw when the others do
    return all(given.get(flag, True) for flag in _RANDOM_IF.get(name, ()))


def passes_on(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call returns its first argument itself, though its schema does not say so."""
    return target._schema.name in _PASSING and not draws(target, args, kwargs)


def written(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> List[Any]:
    """The arguments this call writes to."""
    found = []
    for (_, value), argument in zip(_bound(target, args, kwargs), target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(value)
    flag, names = _UNMARKED_WRITES.get(target._schema.name, ("", ()))
    given = dict(_bound(target, args, kwargs))
    if flag and given.get(flag):
        found += [given.get(name) for name in names]
    return found


def changes_contents(target: Any) -> bool:
    """Whether it writes numbers to what it writes to; a torch.tensor(...) in a graph ends in a detach_."""
    return bool(target._schema.name != "aten::detach_")


def num_returns(target: Any) -> int:
    """How many values it returns, 0 for a list whose length only the call tells."""
    returns = target._schema.returns
    if len(returns) == 1 and isinstance(returns[0].type, torch.ListType):
        return 0
    return len(returns)


def _bound(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tuple[str, Any]]:
    for place, argument in enumerate(target._schema.arguments):
        if place < len(args):
            yield argument.name, args[place]
        elif argument.name in kwargs:
            yield argument.name, kwargs[argument.name]
        else:
            default = argument.default_value if argument.has_default_value() else None
            yield argument.name, default
