"""What the tests of runtimes share: a trial's parameters, and a process left as it was found."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corewise.runtimes.base import RankContext

DEFAULTS = {
    "workload": "matmul",
    "mode": "infer",
    "device": "cpu",
    "processes": 1,
    "threads": 1,
    "interop_threads": None,
    "batch": 1,
    "batch_scope": "process",
    "dtype": "float32",
    "memory_format": "contiguous",
    "execution": "eager",
    "freezing": "none",
    "math": "vendor",
    "float32_precision": "default",
    "denormals": "default",
    "data": "synthetic",
    "loader_workers": 0,
}


@pytest.fixture(scope="session")
def default_params() -> dict[str, Any]:
    return dict(DEFAULTS)


@pytest.fixture
def params() -> Callable[..., dict[str, Any]]:
    """A trial's parameters; `image_size=64` and the like become `args.image_size`."""

    def made(**values: Any) -> dict[str, Any]:
        return {**DEFAULTS, **{k if k in DEFAULTS else f"args.{k}": v for k, v in values.items()}}

    return made


@pytest.fixture
def alone(tmp_path: Path) -> RankContext:
    return RankContext(rank=0, num_ranks=1, rendezvous=str(tmp_path), num_cpus=1)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Writes a file with a factory `make` and names the workload."""

    def written(source: str) -> str:
        (tmp_path / "mine.py").write_text(source)
        return f"{tmp_path / 'mine.py'}:make"

    return written


@pytest.fixture(autouse=True)
def torch_left_as_found() -> Iterator[None]:
    """A job sets threads, oneDNN and numbers for its whole process, which here runs other tests too."""
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
