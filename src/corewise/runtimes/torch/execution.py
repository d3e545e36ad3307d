"""From an eager module to what a trial calls: freezing, layout, own kernels, TorchScript, compiler, widths.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any, Callable, Iterator, cast

import torch
from torch import Tensor, nn

from corewise.runtimes.base import Infeasible
from corewise.runtimes.torch.freezing import freeze_when_compiled, frozen
from corewise.runtimes.torch.settings import Settings
from corewise.runtimes.torch.widths import with_changing_widths


def placed(module: nn.Module, settings: Settings) -> nn.Module:
    """The module on the device, in the dtype, mode and memory format of the trial."""
    module.to(settings.device, settings.tensor_dtype)
    if settings.memory_format == "channels_last":
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module.train(settings.training)


def configured(module: nn.Module, settings: Settings, wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """What the trial calls; `wrap` makes the ranks train together. Trains the parameters of the module."""
    if settings.memory_format == "blocked":
        return blocked(module, settings)
    if settings.execution == "script":
        made = wrap(scripted(module))
        with silent_deprecation():
            return frozen(made) if settings.freezing == "full" else made
    if settings.execution == "quickened":
        return wrap(quickened(module, settings))
    if settings.execution == "malleable":
        return with_changing_widths(module)
    if settings.execution == "compile":
        with silent_deprecation():
            import torch.utils.mkldnn  # the compiler imports it, and it warns
        if settings.freezing == "full":
            freeze_when_compiled()
        # A fixed shape is measured, so nothing is compiled for shapes in general.
        return cast(nn.Module, torch.compile(wrap(module), dynamic=False))
    return wrap(module)


def quickened(module: nn.Module, settings: Settings) -> nn.Module:
    """The module with layers on our own kernels; Infeasible where there are none for it here."""
    from corewise.dataflow.native.build import CannotBuild
    from corewise.runtimes.torch.quickened import num_quickened, quicken

    try:
        quicken(module)
    except CannotBuild as problem:
        raise Infeasible(f"execution quickened: {problem}") from problem
    if not num_quickened(module, channels_last=settings.memory_format == "channels_last"):
        has_any = num_quickened(module) > 0
        reason = "they convolve images that lie as memory_format: channels_last" if has_any else "none fits"
        raise Infeasible(f"execution quickened: our own kernels do nothing for this module: {reason}")
    return module


def scripted(module: nn.Module) -> nn.Module:
    """The module as TorchScript."""
    with silent_deprecation():
        # Modules that torch.fx wrote have empty annotations; TorchScript would warn of them.
        warnings.filterwarnings("ignore", "The TorchScript type system doesn't support", UserWarning)
        try:
            _forget_freed_operators(module)
            return cast(nn.Module, torch.jit.script(module))
        except Exception as problem:
            reason = str(problem).strip().splitlines() or [type(problem).__name__]
            raise Infeasible(
                f"execution script: torch.jit.script cannot take this module: {reason[0]}"
            ) from problem


def _forget_freed_operators(module: nn.Module) -> None:
    """TorchScript knows operators by `id()`, which a freed one may have lent to a value of the module."""
    from torch.jit import _builtins

    table = _builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    for part in module.modules():
        for value in vars(part).values():
            if not callable(value):
                table.pop(id(value), None)


def blocked(module: nn.Module, settings: Settings) -> nn.Module:
    """A copy of the module with its weights in the blocks oneDNN chooses, for dense tensors in and out."""
    with silent_deprecation():
        from torch.utils.mkldnn import to_mkldnn

        dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
        network = to_mkldnn(copy.deepcopy(module), dtype)  # type: ignore[no-untyped-call]
        return Blocked(_densely_pooled(network), dtype)


class Blocked(nn.Module):
    """Runs a network on blocked tensors, the conversions in and out included."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.dtype = network, dtype

    def forward(self, *inputs: Tensor) -> Any:
        out = self.network(*(x.to_mkldnn(self.dtype) if x.is_floating_point() else x for x in inputs))
        return out.to_dense() if isinstance(out, Tensor) and out.is_mkldnn else out


class DenselyPooled(nn.Module):
    """Adaptive pooling that leaves the blocks where oneDNN cannot pool: unevenly divided inputs."""

    def __init__(self, pool: nn.AdaptiveAvgPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Any:
        size = self.pool.output_size
        asked = size if isinstance(size, tuple) else (size, size)
        even = all(n is not None and length % n == 0 for length, n in zip(x.shape[-2:], asked))
        return self.pool(x) if even or not x.is_mkldnn else self.pool(x.to_dense())


def _densely_pooled(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if isinstance(child, nn.AdaptiveAvgPool2d):
            setattr(module, name, DenselyPooled(child))
        elif not isinstance(child, torch.jit.ScriptModule):
            _densely_pooled(child)
    return module


@contextlib.contextmanager
def silent_deprecation() -> Iterator[None]:
    """TorchScript's deprecation is known here and not worth a warning in every trial."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        yield
