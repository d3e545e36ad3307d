"""What a module is now: its modes, its parts, its hooks; cheap enough to ask at every call.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import re
from typing import Any, List, Tuple

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

OLDEST = (2, 6)  # version of torch
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class ModuleWatch:
    """Notices what makes a captured program another one."""

    def __init__(self, module: nn.Module) -> None:
        self.modules = list(module.modules())
        self._parts = [(one._modules, tuple(one._modules.values())) for one in self.modules if one._modules]
        self._hooks: List[Any] = [getattr(one, name) for one in self.modules for name in _HOOKS]
        parameters = list(module.parameters())
        self._samples = [*parameters[:1], *parameters[-1:]]

    def is_whole(self) -> bool:
        """Whether the module still has the parts it had."""
        return all(tuple(parts.values()) == known for parts, known in self._parts)

    def state(self) -> Tuple[bytes, Tuple[Any, ...]]:
        """Equal as long as the same program is right: training flags, types, devices."""
        kinds = tuple((one.dtype, one.device) for one in self._samples)
        return bytes([one.training for one in self.modules]), kinds

    def has_hooks(self) -> bool:
        """Whether someone listens to its calls; replayed operators would not tell them."""
        return any(self._hooks) or bool(module_hooks._has_any_global_hook())  # type: ignore[no-untyped-call]


def why_not(module: nn.Module) -> str:
    """Why this module must run itself, whatever its inputs are; empty when nothing speaks against a plan."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type != "cpu":
            return f"the model is on {tensor.device.type}, whose operators do not run on CPU threads"
    if _version() < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"torch {torch.__version__} is older than {oldest}, whose export keeps operators whole"
    kind = type(module).__name__
    if isinstance(module, nn.parallel.DistributedDataParallel) or "FullyShardedDataParallel" in kind:
        return f"{kind} does more than its operators show; give its module to malleable first"
    if isinstance(module, torch.jit.ScriptModule):
        return "a scripted module cannot be captured"
    if hasattr(module, "_orig_mod"):
        return "a compiled module runs its own code"
    return ""


def _version() -> Tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return tuple(int(part) for part in found.groups()) if found else OLDEST
