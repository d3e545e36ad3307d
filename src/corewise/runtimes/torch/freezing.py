"""Weights that will not change: norms folded into the convolutions before them, or everything made constant.

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

from corewise.runtimes.base import Infeasible
from corewise.runtimes.torch.same_results import left_alone

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYERS = (*CONVOLUTIONS, *NORMS, nn.Linear)
PACKED = "weight_pack_matcher_count"  # the end of the names of the compiler's counters of prepared weights


def folded(module: nn.Module) -> nn.Module:
    """A copy in which norms that follow a convolution are part of it; Infeasible where there is none."""
    return fold(module)[0]


def fold(module: nn.Module) -> Tuple[nn.Module, int]:
    """That copy, and how many norms were folded."""
    network = traced(module, "freezing fold")
    num_folded = fold_norms(network)
    if not num_folded:
        raise Infeasible("freezing fold: no batch normalisation follows a convolution in this module")
    return network, num_folded


def traced(module: nn.Module, wanted: str) -> fx.GraphModule:
    """The module as a graph of its layers; Infeasible, with what was wanted, where that cannot be had."""
    tracer = _Tracer()
    is_called = tracer.is_leaf_module(module, "") or has_hooks(module)
    root = nn.Sequential(module) if is_called else module
    root.training = module.training
    try:
        with left_alone(module):
            return fx.GraphModule(root, tracer.trace(root))
    except Exception as problem:
        said = str(problem).strip().splitlines() or [type(problem).__name__]
        raise Infeasible(f"{wanted}: torch.fx cannot trace this module: {said[0]}") from problem


def fold_norms(network: fx.GraphModule) -> int:
    """How many norms of the graph were made part of the convolution before them."""
    modules = dict(network.named_modules())
    num_folded = 0
    num_calls = Counter(str(node.target) for node in network.graph.nodes if node.op == "call_module")
    for node in list(network.graph.nodes):
        norm, before = _called(node, modules), node.args[0] if node.args else None
        if not isinstance(norm, NORMS) or norm.running_mean is None or not isinstance(before, fx.Node):
            continue
        conv = _called(before, modules)
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
    """Looks into modules, but not into layers that compute as torch's own, whoever has defined them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return computes_as_torchs(m) or super().is_leaf_module(m, module_qualified_name)


def computes_as_torchs(module: nn.Module) -> bool:
    """Whether it is a convolution, a norm or a linear layer that computes nothing else."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in LAYERS)


def has_hooks(module: nn.Module) -> bool:
    """Whether something else happens where the module is called."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def num_norms(module: nn.Module) -> int:
    """Batch normalisations within a module."""
    return sum(isinstance(m, NORMS) for m in module.modules())


def frozen(scripted: nn.Module) -> nn.Module:
    """The scripted module with its weights as constants, each in the layout that oneDNN prefers."""
    return cast(nn.Module, torch.jit.optimize_for_inference(cast(Any, scripted)))


def freeze_when_compiled() -> None:
    """Let torch's compiler make constants of weights.

    Set for the process: an option of one compilation reaches the back end alone, too late.
    """
    import torch._inductor.config as inductor

    inductor.freezing = True


def num_prepared_weights() -> int:
    """Weights that torch's compiler has made constant and laid out for their operators so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters: Dict[str, int] = dynamo.counters["inductor"] if dynamo is not None else {}
    return sum(count for name, count in counters.items() if name.endswith(PACKED))


def _called(node: fx.Node, modules: Mapping[str, nn.Module]) -> Optional[nn.Module]:
    return modules.get(str(node.target)) if node.op == "call_module" else None
