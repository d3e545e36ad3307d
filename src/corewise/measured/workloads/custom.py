"""A user's workload, named `path/to/file.py:factory`.

Measured side: standard library only, Python 3.9. The contract:

    def factory(batch, mode, **args):  # mode: "train" or "infer"; args: the study's `args.NAME` values
        return module, (x,)            # a torch.nn.Module and its inputs; its loss: the outputs' mean square
        return module, (x,), targets   # its loss: cross entropy for whole-number targets, else squared error
        return {"step": call_me, "samples_per_step": batch,    # or a function that runs one timed step
                "check": lambda: (error, tolerance)}           # optional, called once before any timing

A module runs in the trial's dtype, memory format and execution, and is checked against itself in float64.
A step decides these itself. Instead of a dict it may be an object with the same names as attributes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Tuple, Union, cast

from corewise.measured.runtimes.base import WorkloadError
from corewise.measured.workloads.base import Work, Workload

SUFFIX = ".py"


@dataclasses.dataclass(frozen=True)
class CustomWorkload(Workload):
    """A user's workload before its file is run.

    Its work is unknown and counted as 0. `concurrent` is True so that no setting is ruled out.
    """

    name: str
    summary: str = "your own workload"
    modes: Tuple[str, ...] = ("train", "infer")
    runtimes: Tuple[str, ...] = ("torch", "numpy", "jax", "tensorflow")
    concurrent: bool = True

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        return Work(flops_per_sample=0.0, bytes_per_sample=0.0, num_parameters=0)


@dataclasses.dataclass(frozen=True)
class CustomModule:
    """A module and its inputs, as returned by a factory."""

    module: Any
    inputs: Tuple[Any, ...]
    targets: Any = None


@dataclasses.dataclass(frozen=True)
class CustomStep:
    """A step function, as returned by a factory."""

    step: Callable[[], Any]
    samples_per_step: float
    check: Optional[Callable[[], Tuple[float, float]]] = None


def is_custom(name: str) -> bool:
    """Return True for a name like `path.py:factory`."""
    path, _, factory = name.rpartition(":")
    return path.endswith(SUFFIX) and factory.isidentifier()


def build_custom(name: str, batch: int, mode: str, args: Mapping[str, Any]) -> Union[CustomModule, CustomStep]:
    """Call the factory and parse its result.

    Raises WorkloadError for an error in the user's code. SystemExit is not caught.
    """
    path, factory_name = _split_name(name)
    with _add_import_folder(path):
        try:
            result = _find_factory(path, factory_name)(batch, mode, **args)
        except (MemoryError, WorkloadError):
            raise
        except Exception as problem:
            last_line = traceback.format_exception_only(type(problem), problem)[-1].strip()
            location = _format_location(problem, path)
            is_called_wrongly = isinstance(problem, TypeError) and not location
            advice = "; it is called with batch, mode and the arguments of the study" if is_called_wrongly else ""
            raise WorkloadError(f"{name} failed{location}: {last_line}{advice}") from problem
    return _parse_factory_result(name, result, batch)


def load_imports(imports: Sequence[str]) -> None:
    """Import modules, and names of modules that may be loaded lazily; errors are left to the user's own import."""
    for each in imports:
        name, _, attribute = each.partition(":")
        with contextlib.suppress(Exception):
            module = importlib.import_module(name)
            if attribute and not hasattr(module, attribute):
                importlib.import_module(f"{name}.{attribute}")


def find_source_file(name: str) -> Path:
    """Return the file of a user's workload; raise WorkloadError if it does not exist."""
    return _split_name(name)[0]


def _split_name(name: str) -> Tuple[Path, str]:
    """Return the file and the function's name; raise WorkloadError if the file does not exist."""
    file, _, factory = name.rpartition(":")
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise WorkloadError(f"{name}: file {path} does not exist")
    return path, factory


@contextlib.contextmanager
def _add_import_folder(path: Path) -> Iterator[None]:
    """Make modules in the folder of the user's file importable."""
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _find_factory(path: Path, factory_name: str) -> Callable[..., Any]:
    """Load the user's file and return the named function."""
    module = _load_file(path)
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        offered = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        raise WorkloadError(
            f"{path}:{factory_name}: the file defines no function {factory_name!r}; "
            f"it defines {', '.join(offered) or 'none'}"
        )
    return cast(Callable[..., Any], factory)


def _load_file(path: Path) -> ModuleType:
    """Import the user's file under a name that cannot collide with another module."""
    name = f"corewise_custom_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses, pickle and compilers look the module up in sys.modules.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _format_location(problem: BaseException, path: Path) -> str:
    """Return the last line of the user's file in the traceback, as text."""
    lines = [f.lineno for f in traceback.extract_tb(problem.__traceback__) if f.filename == str(path)]
    return f" in line {lines[-1]}" if lines else ""


def _parse_factory_result(name: str, result: Any, batch: int) -> Union[CustomModule, CustomStep]:
    """Convert the result of a factory; raise WorkloadError if it has an unknown form."""
    if isinstance(result, tuple) and len(result) in (2, 3):
        inputs = result[1] if isinstance(result[1], (tuple, list)) else (result[1],)
        return CustomModule(result[0], tuple(inputs), result[2] if len(result) == 3 else None)
    values = result if isinstance(result, Mapping) else {k: getattr(result, k, None) for k in ("step", *_OPTIONAL)}
    step = values.get("step")
    if not callable(step):
        raise WorkloadError(
            f"{name} returned {_describe_value(result)}; a factory returns (module, inputs), "
            '(module, inputs, targets) or {"step": callable, "samples_per_step": number, "check": callable}'
        )
    samples, check = values.get("samples_per_step"), values.get("check")
    if samples is None:
        samples = batch
    if isinstance(samples, bool) or not isinstance(samples, (int, float)) or not 0 < samples < float("inf"):
        raise WorkloadError(f"{name}: samples_per_step must be a number greater than 0, not {samples!r}")
    if check is not None and not callable(check):
        raise WorkloadError(f"{name}: check must be a callable that returns (error, tolerance), not {check!r}")
    return CustomStep(step, float(samples), check)


_OPTIONAL = ("samples_per_step", "check")


def _describe_value(value: Any) -> str:
    """Return the type and a shortened repr of a value."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
