"""LSTM cells in bfloat16 where oneDNN lacks the instructions: refused with the reason."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.runtimes.base import RankContext  # noqa: E402
from corewise.runtimes.torch.bfloat16 import LACKING, REMEDY, lacking_cell  # noqa: E402
from corewise.runtimes.torch.settings import read_settings  # noqa: E402

pytestmark = pytest.mark.torch

OLD_CPU = """
import os, sys
import torch
from corewise.runtimes.base import Infeasible, RankContext
from corewise.runtimes.torch.runtime import TorchRuntime

for params, lies in eval(sys.argv[1]):
    if lies:  # a CPU that says it can, and cannot
        torch.ops.mkldnn._is_mkldnn_bf16_supported = lambda: True
    try:
        job = TorchRuntime().prepare(params, RankContext(0, 1, sys.argv[2], 1))
        print("passed" if job.check().passed else "wrong")
    except Infeasible as problem:
        print(problem)
sys.stdout.flush()
os._exit(0)
"""
CELLS = {"workload": "lstm_cell", "problem": "t3mb2sic8", "reorders": "excluded", "dtype": "bfloat16"}
ENSEMBLE = {"workload": "lstm_ensemble", "members": 2, "time_steps": 3, "batch": 2, "dtype": "bfloat16"}


@pytest.mark.skipif(not torch._C._has_mkldnn, reason="this torch has no oneDNN")
def test_bfloat16_cells_on_a_cpu_without_them_are_refused_with_the_reason(
    params: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    asked = [
        (params(**CELLS), False),
        (params(**ENSEMBLE), False),
        (params(**ENSEMBLE, math="vanilla"), False),
        (params(**CELLS), True),
        (params(**ENSEMBLE), True),
    ]
    ended = subprocess.run(
        [sys.executable, "-c", OLD_CPU, repr(asked), str(tmp_path)],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        f"reorders excluded in bfloat16: {LACKING}; use float32, or reorders included",
        f"bfloat16 LSTM cells: {LACKING}; {REMEDY}",
        "passed",
        f"bfloat16 LSTM cells: oneDNN has none on this CPU; {REMEDY}",
        f"bfloat16 LSTM cells: oneDNN has none on this CPU; {REMEDY}",
    ]


def test_other_errors_are_left_as_they_are(params: Callable[..., dict[str, Any]], alone: RankContext) -> None:
    settings = read_settings(params(dtype="bfloat16"), alone)
    assert lacking_cell(RuntimeError("could not create a primitive"), settings) is None
