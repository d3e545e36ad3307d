"""The settings of a launch: the command line's over a tuned file's, checked against the machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corewise.cli.launch_options import Request
from corewise.launcher.environment import PRELOADED_ALLOCATORS
from corewise.launcher.ranks import OUTSIDE_DEFAULTS, complete_params
from corewise.machine.model import Allocation, Topology
from corewise.machine.sysfs import read_text
from corewise.spec.errors import UserError

if TYPE_CHECKING:
    from corewise.spec.tuned import Tuned

PRELOADABLE = (*PRELOADED_ALLOCATORS, "libiomp5")
TRANSPARENT_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LEAST_GLIBC = (2, 35)  # the first whose malloc asks for huge pages


@dataclass(frozen=True)
class Settings:
    """What ranks are given, complete."""

    params: Mapping[str, Any]
    environment: Mapping[str, str]
    libraries: Mapping[str, Path]
    notes: tuple[str, ...] = ()  # what the user should know, once
    independent: bool = False  # whether the processes were tuned as replicas, which need not meet


def read_settings(request: Request, program: str, topology: Topology, allocation: Allocation) -> Settings:
    """The settings a request amounts to on this machine; a UserError where they cannot be had."""
    given: dict[str, Any] = {}
    environment: dict[str, str] = {}
    notes: list[str] = []
    independent = is_malleable = False
    if request.config is not None:
        from corewise.spec.tuned import read_tuned  # yaml takes its time

        tuned = read_tuned(request.config)
        given = _fitting(request, tuned, program, topology, allocation, notes)
        environment, independent = dict(tuned.environment), tuned.subject.mode == "infer"
        is_malleable = tuned.params.get("execution") == "malleable"
    elif request.adapt:
        raise UserError("--adapt is for a tuned file; name it with --config")
    params = complete_params({**given, **request.params}, topology, allocation.cpus)
    if is_malleable:  # idle threads must give way, which is settled before the program starts
        params = {**params, "execution": "malleable"}
    from_file = {name: str(request.config) for name in given if name not in request.params}
    libraries = _libraries(params, program, from_file)
    if libraries and "LD_PRELOAD" in request.environment:
        notes.append(f"--env LD_PRELOAD replaces what would load {' and '.join(libraries)}")
    _check_huge_pages(params, notes, from_file)
    return Settings(params, {**environment, **request.environment}, libraries, tuple(notes), independent)


def _fitting(
    request: Request,
    tuned: "Tuned",
    program: str,
    topology: Topology,
    allocation: Allocation,
    notes: list[str],
) -> dict[str, Any]:
    """The parameters of the tuned file that can be set from outside, fit for this machine."""
    from corewise.launcher.adapt import adapted, differences, read_fingerprint, without_missing
    from corewise.launcher.code_settings import code_settings

    params = dict(tuned.params)
    found = differences(tuned.machine, read_fingerprint(topology, allocation))
    if found and not request.adapt:
        listed = "\n".join(f"  {difference}" for difference in found)
        raise UserError(
            f"{request.config} was tuned on another machine:\n{listed}\n"
            "Tune here with `corewise tune`, or give --adapt to plan its settings anew."
        )
    if request.adapt:
        present = [name for name in PRELOADABLE if _find(name, program)]
        pages = "[never]" not in _huge_page_modes()
        if found:
            new = adapted(params, tuned.machine, topology, allocation.cpus, present, has_huge_pages=pages)
        else:
            new = without_missing(params, present, has_huge_pages=pages)
        params = dict(new.params)
        notes += [f"adapted {change}" for change in new.changes]
        if found or new.changes:
            notes.append("adapted settings were not measured; `corewise tune` finds those of this machine")
    if tuned.subject.command:  # of which only what comes from outside was varied
        params.pop("loader_workers", None)
    for setting, line in code_settings({**params, **request.params}).items():
        notes.append(f"only your code can apply {setting}\n  {line}")
    return {name: params[name] for name in OUTSIDE_DEFAULTS if name in params}


def _libraries(params: Mapping[str, Any], program: str, from_file: Mapping[str, str]) -> dict[str, Path]:
    """Where the libraries lie that the parameters ask to preload."""
    found = {}
    for option in ("allocator", "openmp"):
        name = str(params[option])
        if name not in PRELOADABLE:
            continue
        path = _find(name, program)
        if path is None:
            from corewise.machine.libraries import install_hint

            raise UserError(
                f"{_asked_by(option, name, from_file)}: not installed here; {install_hint(name)}"
                f"{_without(option, from_file)}"
            )
        found[name] = path
    return found


def _asked_by(name: str, value: str, from_file: Mapping[str, str]) -> str:
    """Where a setting was asked for: the option, or the file that it came from."""
    if name in from_file:
        return f"{from_file[name]}: {name}: {value}"
    return f"--{name.replace('_', '-')} {value}"


def _without(name: str, from_file: Mapping[str, str]) -> str:
    """How to go on without a setting that stands in a file, as the end of a sentence."""
    return f"; --{name.replace('_', '-')} default or --adapt goes on without it" if name in from_file else ""


def _huge_page_modes() -> str:
    return read_text(TRANSPARENT_HUGE_PAGES) or "[never]"


def _find(name: str, program: str) -> Path | None:
    from corewise.machine.libraries import find_library  # only those who preload something wait for it

    return find_library(name, python_prefix=Path(program).absolute().parent.parent)


def _check_huge_pages(params: Mapping[str, Any], notes: list[str], from_file: Mapping[str, str]) -> None:
    if params["huge_pages"] == "default":
        return
    from corewise.machine.libraries import glibc_version

    modes = _huge_page_modes()
    if "[never]" in modes:
        raise UserError(
            f"{_asked_by('huge_pages', 'transparent', from_file)}: this kernel has them switched off; "
            f"leave it out, or have `madvise` written to {TRANSPARENT_HUGE_PAGES}"
            f"{_without('huge_pages', from_file)}"
        )
    if "[always]" in modes:
        notes.append("huge pages: this kernel gives them to everyone already")
    version = tuple(int(part) for part in (glibc_version() or "0").split(".")[:2])
    if params["allocator"] == "tcmalloc" or (params["allocator"] != "jemalloc" and version < LEAST_GLIBC):
        notes.append("huge pages: this allocator cannot ask for them; only torch's tensors will have them")
