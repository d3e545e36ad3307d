"""Fold batch norms into the preceding convolutions, and let torch's compilers treat weights as constants.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Dict, Mapping, Optional, Tuple, cast

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.parametrize import is_parametrized

from corewise.accelerate.equivalence import restore_module
from corewise.accelerate.unsupported import Unsupported

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYERS = (*CONVOLUTIONS, *NORMS, nn.Linear)
# The compiler's counters of prepared weights have names with this suffix.
PACK_COUNTER_SUFFIX = "weight_pack_matcher_count"


def fold_module(module: nn.Module) -> Tuple[nn.Module, int]:
    """Return a copy with norms folded into convolutions, and their number; raise Unsupported if none is."""
    network = trace_module(module, "freezing fold")
    num_folded = fold_norms(network)
    if not num_folded:
        raise Unsupported("freezing fold: no batch normalisation follows a convolution in this module")
    return network, num_folded


def trace_module(module: nn.Module, setting: str) -> fx.GraphModule:
    """Trace the module to a graph of its layers; raise Unsupported, with the setting, if torch.fx cannot."""
    tracer = _Tracer()
    is_called = tracer.is_leaf_module(module, "") or has_hooks(module)
    root = nn.Sequential(module) if is_called else module
    root.training = module.training
    try:
        with restore_module(module):
            return fx.GraphModule(root, tracer.trace(root))
    except Exception as problem:
        message = str(problem).strip().splitlines() or [type(problem).__name__]
        raise Unsupported(f"{setting}: torch.fx cannot trace this module: {message[0]}") from problem


def fold_norms(network: fx.GraphModule) -> int:
    """Fold norms of the graph into the preceding convolutions and return how many."""
    modules = dict(network.named_modules())
    num_folded = 0
    num_calls = Counter(str(node.target) for node in network.graph.nodes if node.op == "call_module")
    for node in list(network.graph.nodes):
        norm, before = _find_module(node, modules), node.args[0] if node.args else None
        if not isinstance(norm, NORMS) or norm.running_mean is None or not isinstance(before, fx.Node):
            continue
        conv = _find_module(before, modules)
        if has_hooks(norm) or conv is None or has_hooks(conv) or is_parametrized(conv):
            continue
        if isinstance(conv, CONVOLUTIONS) and len(before.users) == num_calls[str(before.target)] == 1:
            parent, _, name = str(before.target).rpartition(".")
            setattr(modules[parent], name, fuse_conv_bn_eval(conv, norm))
            node.replace_all_uses_with(before)
            network.graph.erase_node(node)
            num_folded += 1
    network.delete_all_unused_submodules()
    network.recompile()
    return num_folded


class _Tracer(fx.Tracer):
    """Traces modules, but not layers that compute as torch's own, including subclasses."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_standard_layer(m) or super().is_leaf_module(m, module_qualified_name)


def is_standard_layer(module: nn.Module) -> bool:
    """Return whether it is a convolution, norm or linear layer with torch's forward."""
    return any(isinstance(module, cls) and type(module).forward is cls.forward for cls in LAYERS)


def has_hooks(module: nn.Module) -> bool:
    """Return whether the module has forward hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def count_norms(module: nn.Module) -> int:
    """Count the batch norms of a module."""
    return sum(isinstance(m, NORMS) for m in module.modules())


def freeze_scripted(scripted: nn.Module) -> nn.Module:
    """Make the weights of a scripted module constants, each in the layout that oneDNN prefers."""
    return cast(nn.Module, torch.jit.optimize_for_inference(cast(Any, scripted)))


def freeze_when_compiled() -> None:
    """Make torch's compiler treat weights as constants.

    It is set for the process: an option of one compilation reaches only the back end, which is too late.
    """
    import torch._inductor.config as inductor

    inductor.freezing = True


def count_prepared_weights() -> int:
    """Count the weights that torch's compiler has prepared for their operators so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters: Dict[str, int] = dynamo.counters["inductor"] if dynamo is not None else {}
    return sum(count for name, count in counters.items() if name.endswith(PACK_COUNTER_SUFFIX))


def _find_module(node: fx.Node, modules: Mapping[str, nn.Module]) -> Optional[nn.Module]:
    return modules.get(str(node.target)) if node.op == "call_module" else None
