"""Fixtures of runtime tests: parameters of a trial, and torch settings restored after each test."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import RankContext

# The base of every test; all other parameters have the default of their axis.
DEFAULTS = {"workload": "matmul", "mode": "infer", "batch": 1}
# Names that are parameters of a trial in these tests; all others are arguments of the workload.
KNOWN = frozenset(TrialParameters().to_mapping())


@pytest.fixture(scope="session")
def default_params() -> dict[str, Any]:
    return dict(DEFAULTS)


@pytest.fixture
def params() -> Callable[..., TrialParameters]:
    """Build parameters of a trial; a name like `image_size` becomes `args.image_size`."""

    def build(**values: Any) -> TrialParameters:
        flat = {name if name in KNOWN else f"args.{name}": value for name, value in values.items()}
        return TrialParameters.from_mapping({**DEFAULTS, **flat})

    return build


@pytest.fixture
def alone(tmp_path: Path) -> RankContext:
    return RankContext(rank=0, num_ranks=1, rendezvous=str(tmp_path), num_cpus=1)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write a file with a factory `make` and return the name of the workload."""

    def write_file(source: str) -> str:
        (tmp_path / "mine.py").write_text(source)
        return f"{tmp_path / 'mine.py'}:make"

    return write_file


@pytest.fixture(autouse=True)
def torch_left_as_found() -> Iterator[None]:
    """Restore threads, oneDNN and precision, which a job sets for the whole process."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    num_threads, enabled = torch.get_num_threads(), torch.backends.mkldnn.enabled
    parts = (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv, torch.backends.mkldnn.rnn)
    precisions = [part.fp32_precision for part in parts]
    yield
    torch.set_num_threads(num_threads)
    torch.backends.mkldnn.enabled = enabled
    for part, precision in zip(parts, precisions, strict=True):
        part.fp32_precision = precision
    torch.set_flush_denormal(False)
    inductor = sys.modules.get("torch._inductor.config")
    if inductor is not None:
        inductor.freezing = False
