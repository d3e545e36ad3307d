"""Side effects of torch's operators: what they write, whether they draw random numbers.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, Sequence, Tuple

import torch

_SEEDED = getattr(torch.Tag, "nondeterministic_seeded", None)
_KNOWN_NAMESPACES = {
    *("aten", "prims", "quantized", "quantized_decomposed", "onednn", "mkldnn", "torchvision"),
    "corewise",
}
# Operators that write to these arguments if the flag is set, although their schemas do not say so.
_UNMARKED_WRITES = {
    "aten::batch_norm": ("training", ("running_mean", "running_var")),
    "aten::_batch_norm_impl_index": ("training", ("running_mean", "running_var")),
    "aten::instance_norm": ("use_input_stats", ("running_mean", "running_var")),
}
# Operators that draw random numbers only if all these arguments are true or nonzero.
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
# Operators that return their input if they draw nothing. Neither schemas nor fake tensors show it.
_IDENTITY_UNLESS_RANDOM = {
    "aten::dropout",
    "aten::feature_dropout",
    "aten::alpha_dropout",
    "aten::feature_alpha_dropout",
}


def has_schema(target: Any) -> bool:
    """Return whether the target is an operator with a schema."""
    return isinstance(target, torch._ops.OpOverload)


def has_known_effects(target: Any) -> bool:
    """Return whether the side effects are known; a custom operator may draw numbers or keep state."""
    return target.namespace in _KNOWN_NAMESPACES


def uses_generator(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether this call draws numbers from torch's generator."""
    if _SEEDED is None or _SEEDED not in target.tags:
        return False
    arguments = dict(_bind_arguments(target, args, kwargs))
    # In-place variants draw if the others do.
    name = target._schema.name.rstrip("_")
    return all(arguments.get(flag, True) for flag in _RANDOM_IF.get(name, ()))


def is_identity_call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether this call returns its first argument, although its schema does not say so."""
    return target._schema.name in _IDENTITY_UNLESS_RANDOM and not uses_generator(target, args, kwargs)


def find_written(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> List[Any]:
    """Find the arguments that this call writes to."""
    written = []
    for (_, value), argument in zip(_bind_arguments(target, args, kwargs), target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(value)
    flag, names = _UNMARKED_WRITES.get(target._schema.name, ("", ()))
    arguments = dict(_bind_arguments(target, args, kwargs))
    if flag and arguments.get(flag):
        written += [arguments.get(name) for name in names]
    return written


def has_content_writes(target: Any) -> bool:
    """Return whether it changes contents; torch.tensor(...) in a graph ends in a detach_, which does not."""
    return bool(target._schema.name != "aten::detach_")


def count_returns(target: Any) -> int:
    """Count the returned values; 0 for a list whose length only the call shows."""
    returns = target._schema.returns
    if len(returns) == 1 and isinstance(returns[0].type, torch.ListType):
        return 0
    return len(returns)


def _bind_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tuple[str, Any]]:
    for place, argument in enumerate(target._schema.arguments):
        if place < len(args):
            yield argument.name, args[place]
        elif argument.name in kwargs:
            yield argument.name, kwargs[argument.name]
        else:
            default = argument.default_value if argument.has_default_value() else None
            yield argument.name, default
