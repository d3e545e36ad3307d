"""Whether oneDNN computes bfloat16 on this CPU, and which layers torch gives it without asking.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import nn

from corewise.runtimes.base import Infeasible
from corewise.runtimes.torch.settings import Settings

LACKING = "this CPU lacks the instructions oneDNN asks for in bfloat16 (AVX-512 or later)"
NO_CELL = "primitive descriptor for the LSTM"  # oneDNN's words where it has no such cell
REMEDY = "use float32, or math vanilla"


def onednn_has_bfloat16() -> bool:
    """True where torch has oneDNN and this CPU what oneDNN computes bfloat16 with."""
    return bool(torch._C._has_mkldnn) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def refuse_lacking_cells(module: nn.Module, settings: Settings) -> None:
    """Raises Infeasible where autocast would hand oneDNN bfloat16 LSTM cells that it does not have."""
    by_onednn = settings.device.type == "cpu" and torch._C._has_mkldnn and torch.backends.mkldnn.enabled
    if settings.dtype != "bfloat16" or not by_onednn or onednn_has_bfloat16():
        return
    if any(isinstance(part, nn.LSTM) and not part.proj_size for part in module.modules()):
        raise Infeasible(f"bfloat16 LSTM cells: {LACKING}; {REMEDY}")


def lacking_cell(problem: RuntimeError, settings: Settings) -> Optional[Infeasible]:
    """The refusal in place of oneDNN's error, where it said that it has no such LSTM cell."""
    if NO_CELL not in str(problem):
        return None
    return Infeasible(f"{settings.dtype} LSTM cells: oneDNN has none on this CPU; {REMEDY}")
