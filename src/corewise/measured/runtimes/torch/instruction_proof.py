"""Prove which instruction set torch's kernels use after the axis `isa` has limited it.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import os
import re
import tempfile
from typing import Any, Dict, Mapping, Optional

import torch

from corewise.measured.instruction_sets import ATEN_CAPABILITIES, FORBIDDEN_KERNELS
from corewise.measured.parameters import Isa, TrialParameters
from corewise.measured.runtimes.base import Infeasible

# Large enough that torch gives the convolution to oneDNN.
PROBED_SHAPE, PROBED_WEIGHTS = (4, 16, 32, 32), (32, 16, 3, 3)
_ONEDNN_ISA = re.compile(r"^onednn_verbose,.*?cpu,isa:(.+)$", re.MULTILINE)
_ONEDNN_KERNEL = re.compile(r"^onednn_verbose,.*?exec,cpu,convolution,([^,]+),", re.MULTILINE)


def prove_instruction_set(params: TrialParameters) -> Mapping[str, Any]:
    """Return what ATen and oneDNN report; raise Infeasible if one of them ignores the limit.

    MKL reports nothing, so its limit is set but not proved.
    """
    isa = params.isa
    if isa == Isa.DEFAULT:
        return {}
    if params.execution == "compile":
        _refuse_unlimited_compiler(isa)
    capability = torch.backends.cpu.get_cpu_capability()
    if capability != ATEN_CAPABILITIES[isa]:
        raise Infeasible(f"isa {isa}: torch's own kernels use {capability}; torch ignores ATEN_CPU_CAPABILITY here")
    facts: Dict[str, Any] = {"aten_isa": capability}
    if not torch._C._has_mkldnn:
        return facts
    output = capture_onednn_output()
    reported, kernel = _ONEDNN_ISA.search(output), _ONEDNN_KERNEL.search(output)
    if reported is not None:
        facts["onednn_isa"] = reported[1].strip()
    if kernel is not None:
        facts["onednn_convolution"] = kernel[1]
        wider = find_wider_set(isa, kernel[1])
        if wider is not None:
            raise Infeasible(f"isa {isa}: oneDNN's convolution is {kernel[1]}, which uses {wider}")
    return facts


def find_wider_set(isa: Isa, kernel: str) -> Optional[str]:
    """Find a wider instruction set than the limit in the name of a oneDNN kernel, such as `jit:avx512_core`."""
    return next((name for name in FORBIDDEN_KERNELS[isa] if name in kernel), None)


def capture_onednn_output() -> str:
    """Run a convolution and return what oneDNN prints about it."""
    # oneDNN prints to the descriptor of standard output.
    before = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            # The method has no types.
            verbose: Any = torch.backends.mkldnn.verbose
            with verbose(torch.backends.mkldnn.VERBOSE_ON), torch.no_grad():
                torch.nn.functional.conv2d(torch.ones(PROBED_SHAPE), torch.ones(PROBED_WEIGHTS))
            # Buffered output of C must reach the file.
            _flush_c_streams()
        finally:
            os.dup2(before, 1)
            os.close(before)
        file.seek(0)
        return file.read().decode("utf-8", "replace")


def _flush_c_streams() -> None:
    import ctypes

    ctypes.CDLL(None).fflush(None)


def _refuse_unlimited_compiler(isa: Isa) -> None:
    """Raise Infeasible if torch's compiler always builds for the processor at hand."""
    from torch._inductor import config

    if not hasattr(config.cpp, "march"):
        raise Infeasible(
            f"isa {isa}: the compiler of torch {torch.__version__} builds for this processor only; "
            "use execution: eager, or a newer torch"
        )
