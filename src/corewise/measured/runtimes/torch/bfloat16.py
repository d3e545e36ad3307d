"""Refuse bfloat16 layers that torch passes to oneDNN on CPUs where oneDNN does not support them.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import nn

from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.torch.settings import Settings

MISSING_INSTRUCTIONS = "this CPU lacks the instructions that oneDNN needs for bfloat16 (AVX-512 or later)"
# oneDNN's error message contains this text if it has no such LSTM cell.
MISSING_CELL_TEXT = "primitive descriptor for the LSTM"
REMEDY = "use float32, or math vanilla"


def supports_onednn_bfloat16() -> bool:
    """Return whether torch was built with oneDNN and the CPU has the instructions for bfloat16."""
    return bool(torch._C._has_mkldnn) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def refuse_unsupported_lstms(module: nn.Module, settings: Settings) -> None:
    """Raise Infeasible if autocast would pass bfloat16 LSTMs to oneDNN, which does not support them here."""
    uses_onednn = settings.device.type == "cpu" and torch._C._has_mkldnn and torch.backends.mkldnn.enabled
    if settings.dtype != "bfloat16" or not uses_onednn or supports_onednn_bfloat16():
        return
    if any(isinstance(part, nn.LSTM) and not part.proj_size for part in module.modules()):
        raise Infeasible(f"bfloat16 LSTM cells: {MISSING_INSTRUCTIONS}; {REMEDY}")


def explain_missing_cell(problem: RuntimeError, settings: Settings) -> Optional[Infeasible]:
    """Return a refusal if oneDNN's error says that it has no such LSTM cell."""
    if MISSING_CELL_TEXT not in str(problem):
        return None
    return Infeasible(f"{settings.dtype} LSTM cells: oneDNN has none on this CPU; {REMEDY}")
