"""LSTM cells in bfloat16 where oneDNN lacks the instructions: refused with the reason."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.torch.bfloat16 import MISSING_INSTRUCTIONS, REMEDY, explain_missing_cell
from corewise.measured.runtimes.torch.settings import read_settings

Params = Callable[..., TrialParameters]
pytestmark = pytest.mark.torch

OLD_CPU = """
import os, sys
import torch
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.torch.runtime import TorchRuntime
from corewise.measured.parameters import TrialParameters

for flat, lies in eval(sys.argv[1]):
    # This CPU reports bfloat16 support that it lacks.
    if lies:
        torch.ops.mkldnn._is_mkldnn_bf16_supported = lambda: True
    try:
        job = TorchRuntime().prepare(TrialParameters.from_mapping(flat), RankContext(0, 1, sys.argv[2], 1))
        print("passed" if job.check().passed else "wrong")
    except Infeasible as problem:
        print(problem)
sys.stdout.flush()
os._exit(0)
"""
CELLS = {"workload": "lstm_cell", "problem": "t3mb2sic8", "reorders": "excluded", "dtype": "bfloat16"}
ENSEMBLE = {"workload": "lstm_ensemble", "members": 2, "time_steps": 3, "batch": 2, "dtype": "bfloat16"}


@pytest.mark.skipif(not torch._C._has_mkldnn, reason="this torch has no oneDNN")
def test_bfloat16_cells_on_a_cpu_without_them_are_refused_with_the_reason(params: Params, tmp_path: Path) -> None:
    asked = [
        (params(**CELLS).to_mapping(), False),
        (params(**ENSEMBLE).to_mapping(), False),
        (params(**ENSEMBLE, math="vanilla").to_mapping(), False),
        (params(**CELLS).to_mapping(), True),
        (params(**ENSEMBLE).to_mapping(), True),
    ]
    ended = subprocess.run(
        [sys.executable, "-c", OLD_CPU, repr(asked), str(tmp_path)],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        f"reorders excluded in bfloat16: {MISSING_INSTRUCTIONS}; use float32, or reorders included",
        f"bfloat16 LSTM cells: {MISSING_INSTRUCTIONS}; {REMEDY}",
        "passed",
        f"bfloat16 LSTM cells: oneDNN has none on this CPU; {REMEDY}",
        f"bfloat16 LSTM cells: oneDNN has none on this CPU; {REMEDY}",
    ]


def test_other_errors_are_left_as_they_are(params: Params, alone: RankContext) -> None:
    settings = read_settings(params(dtype="bfloat16"), alone)
    assert explain_missing_cell(RuntimeError("could not create a primitive"), settings) is None
