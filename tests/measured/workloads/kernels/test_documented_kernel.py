"""The example kernel in docs/own-workload.md runs as written."""

import re
from pathlib import Path
from typing import Any

from corewise.measured.parameters import DType, Mode, TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.kernel_job import prepare_kernel
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.workloads.base import is_kernel

DOC = Path(__file__).parents[4] / "docs" / "own-workload.md"


def test_the_kernel_in_the_documentation_computes_what_it_says(tmp_path: Path) -> None:
    [source] = re.findall(r"```python\n# my_kernels\.py\n(.*?)```", DOC.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    assert is_kernel(names["AXPY"])
    params = TrialParameters(mode=Mode.INFER, dtype=DType.FLOAT64, batch=1, arguments={"size": 1000})
    job = prepare_kernel(names["AXPY"], NumpyArrays(), params, RankContext(0, 1, str(tmp_path), 1))
    assert job.check().passed
    job.step()
    job.close()
