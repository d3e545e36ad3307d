"""A user's own workload, named `path/to/file.py:factory`.

Measured side: standard library only, Python 3.9. The contract, in five lines:

    def factory(batch, mode, **args):  # mode: "train" or "infer"; args: the study's `args.NAME` values
        return module, (x,)            # a torch.nn.Module and its inputs; its loss: the outputs' mean square
        return module, (x,), targets   # its loss: cross entropy for whole-number targets, else squared error
        return {"step": call_me, "samples_per_step": batch,    # or one timed step a call, in any framework
                "check": lambda: (error, tolerance)}           # optional, run once before any timing

A module is run in the trial's dtype, memory format and execution, and checked against itself in float64.
A step decides these for itself; instead of a dict it may be an object with the same names as attributes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping, Optional, Tuple, Union, cast

from corewise.runtimes.base import WorkloadError
from corewise.workloads.base import Work

SUFFIX = ".py"
NATIVE_SUFFIXES = (".cpp", ".h", ".txt")


@dataclasses.dataclass(frozen=True)
class CustomWorkload:
    """What can be said of a user's workload before its file is run; its work is not known and given as 0."""

    name: str
    summary: str = "your own workload"
    modes: Tuple[str, ...] = ("train", "infer")
    runtimes: Tuple[str, ...] = ("torch", "numpy", "jax", "tensorflow")
    concurrent: bool = True  # unknown, so nothing is ruled out
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # any: they go to the factory

    def work(self, mode: str, args: Mapping[str, Any]) -> Work:
        return Work(flops_per_sample=0.0, bytes_per_sample=0.0, num_parameters=0)


@dataclasses.dataclass(frozen=True)
class CustomModule:
    """What a factory gave for the framework to run."""

    module: Any
    inputs: Tuple[Any, ...]
    targets: Any = None


@dataclasses.dataclass(frozen=True)
class CustomStep:
    """What a factory gave to be called as it is."""

    step: Callable[[], Any]
    samples_per_step: float
    check: Optional[Callable[[], Tuple[float, float]]] = None


def is_custom(name: str) -> bool:
    """True for `path.py:factory`."""
    path, _, factory = name.rpartition(":")
    return path.endswith(SUFFIX) and factory.isidentifier()


def build_custom(
    name: str, batch: int, mode: str, args: Mapping[str, Any]
) -> Union[CustomModule, CustomStep]:
    """What the factory returns; a fault of the user's code is a WorkloadError, but SystemExit passes."""
    path, factory_name = _split(name)
    with _neighbours_importable(path):
        try:
            made = _factory(path, factory_name)(batch, mode, **args)
        except (MemoryError, WorkloadError):
            raise
        except Exception as problem:
            last_line = traceback.format_exception_only(type(problem), problem)[-1].strip()
            where = _where(problem, path)
            is_called_wrongly = isinstance(problem, TypeError) and not where
            advice = "; it is called with batch, mode and your own keywords" if is_called_wrongly else ""
            raise WorkloadError(f"{name} failed{where}: {last_line}{advice}") from problem
    return _understood(name, made, batch)


def source_hash(name: str) -> str:
    """The sha256 of the source that defines a workload: the user's file, or our workloads and runtimes."""
    if not is_custom(name):
        return _built_in_hash()
    path, _ = _split(name)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _split(name: str) -> Tuple[Path, str]:
    """The file and the function's name; raises when there is no such file."""
    file, _, factory = name.rpartition(":")
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise WorkloadError(f"{name}: there is no file {path}")
    return path, factory


@contextlib.contextmanager
def _neighbours_importable(path: Path) -> Iterator[None]:
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _factory(path: Path, factory_name: str) -> Callable[..., Any]:
    module = _load(path)
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        offered = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        raise WorkloadError(
            f"{path}:{factory_name}: the file defines no function {factory_name!r}; "
            f"it defines {', '.join(offered) or 'none'}"
        )
    return cast(Callable[..., Any], factory)


def _load(path: Path) -> ModuleType:
    """The user's file as a module of its own name, whatever else is called so."""
    name = f"corewise_custom_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses, pickling and compilers look it up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _where(problem: BaseException, path: Path) -> str:
    """The last line of the user's own file that the traceback passes, as text."""
    lines = [f.lineno for f in traceback.extract_tb(problem.__traceback__) if f.filename == str(path)]
    return f" in line {lines[-1]}" if lines else ""


def _understood(name: str, made: Any, batch: int) -> Union[CustomModule, CustomStep]:
    if isinstance(made, tuple) and len(made) in (2, 3):
        inputs = made[1] if isinstance(made[1], (tuple, list)) else (made[1],)
        return CustomModule(made[0], tuple(inputs), made[2] if len(made) == 3 else None)
    values = made if isinstance(made, Mapping) else {k: getattr(made, k, None) for k in ("step", *_OPTIONAL)}
    step = values.get("step")
    if not callable(step):
        raise WorkloadError(
            f"{name} returned {_described(made)}; a factory returns (module, inputs), "
            '(module, inputs, targets) or {"step": callable, "samples_per_step": number, "check": callable}'
        )
    samples, check = values.get("samples_per_step"), values.get("check")
    if samples is None:
        samples = batch
    if isinstance(samples, bool) or not isinstance(samples, (int, float)) or not 0 < samples < float("inf"):
        raise WorkloadError(f"{name}: samples_per_step must be a number above 0, not {samples!r}")
    if check is not None and not callable(check):
        raise WorkloadError(
            f"{name}: check must be a callable that returns (error, tolerance), not {check!r}"
        )
    return CustomStep(step, float(samples), check)


_OPTIONAL = ("samples_per_step", "check")


def _described(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _built_in_hash() -> str:
    return package_hash("corewise.workloads", "corewise.runtimes")


@functools.cache
def package_hash(*packages: str) -> str:
    """The sha256 of all source in some of Corewise's packages."""
    from importlib.resources import files  # also reads from a zip archive

    digest = hashlib.sha256()
    for package in packages:
        for relative, content in _sources(files(package), package):
            digest.update(f"{relative}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _sources(folder: Any, name: str) -> Iterator[Tuple[str, bytes]]:
    """The source files under a folder, in the order of their names."""
    for entry in sorted(folder.iterdir(), key=lambda e: str(e.name)):
        if entry.is_dir():
            yield from _sources(entry, f"{name}/{entry.name}")
        elif entry.name.endswith((SUFFIX, *NATIVE_SUFFIXES)):
            yield f"{name}/{entry.name}", entry.read_bytes()
