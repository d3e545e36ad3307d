"""Resolve the settings of a launch: command-line options override a tuned file; both are checked here."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corewise.errors import UserError
from corewise.launch.environment import PRELOADED_ALLOCATORS
from corewise.launch.ranks import OUTSIDE_DEFAULTS, fill_params
from corewise.machine.machine_model import Allocation, Topology
from corewise.measured.sysfs import read_text

if TYPE_CHECKING:
    from corewise.study.tuned_file import TunedSettings

PRELOADABLE = (*PRELOADED_ALLOCATORS, "libiomp5")
TRANSPARENT_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# The first glibc whose malloc can request huge pages.
MIN_GLIBC = (2, 35)


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What the user asked `corewise launch` to do."""

    # The parameters that were given, by their names in trials.
    params: dict[str, Any]
    command: tuple[str, ...]
    environment: dict[str, str]
    config: Path | None
    adapt: bool
    trust_environment: bool
    # None: set the variables if there are several processes, or if their number was given.
    rendezvous: bool | None
    master_port: int
    keep_env: bool
    prefix: bool
    log_dir: Path | None
    grace_s: float
    verify: bool
    json: Path | None
    dry_run: bool
    quiet: bool
    # None: a launch on this machine, or inside a node of a launch.
    num_nodes: int | None = None
    launcher: str = ""
    hostfile: Path | None = None
    # Set by a launch on several nodes for the process of each node: address of rank 0 and hosts.
    node_of: str = ""


@dataclass(frozen=True)
class LaunchSettings:
    """The complete settings of all ranks."""

    params: Mapping[str, Any]
    environment: Mapping[str, str]
    libraries: Mapping[str, Path]
    # Printed once before the start.
    notes: tuple[str, ...] = ()
    # True if the processes were tuned as replicas, which need no rendezvous.
    independent: bool = False
    # Printed even if nothing is started: variables of the file that can load code.
    environment_note: str = ""


def resolve_settings(
    request: LaunchRequest, program: str, topology: Topology, allocation: Allocation
) -> LaunchSettings:
    """Return the settings of a request on this machine; raise a UserError if one is not available."""
    given: dict[str, Any] = {}
    environment: dict[str, str] = {}
    notes: list[str] = []
    independent, is_malleable, environment_note = False, False, ""
    if request.config is not None:
        # Imported only here: it loads yaml, which takes time.
        from corewise.study.tuned_file import read_tuned

        tuned = read_tuned(request.config)
        given = _fit_tuned(request, tuned, program, topology, allocation, notes)
        # The user's own word replaces that of the file.
        environment = {n: value for n, value in tuned.environment.items() if n not in request.environment}
        environment_note = _check_environment(request, environment)
        independent = tuned.subject.mode == "infer"
        is_malleable = tuned.params.get("execution") == "malleable"
    elif request.adapt:
        raise UserError("--adapt needs a tuned file; name it with --config")
    params = fill_params({**given, **request.params}, topology, allocation.cpus)
    # Idle threads must yield; OpenMP reads that setting before the program starts.
    if is_malleable:
        params = {**params, "execution": "malleable"}
    from_file = {name: str(request.config) for name in given if name not in request.params}
    libraries = _find_libraries(params, program, from_file)
    if libraries and "LD_PRELOAD" in request.environment:
        notes.append(f"--env LD_PRELOAD replaces the preloading of {' and '.join(libraries)}")
    _check_huge_pages(params, notes, from_file)
    return LaunchSettings(
        params, {**environment, **request.environment}, libraries, tuple(notes), independent, environment_note
    )


def _check_environment(request: LaunchRequest, environment: Mapping[str, str]) -> str:
    """Return a note on variables of the tuned file that can load code; raise a UserError without consent.

    A dry run starts nothing, so it only shows them.
    """
    from corewise.study.environment_trust import (
        describe_accepted,
        describe_untrusted,
        require_trusted_environment,
        select_untrusted,
    )

    source, untrusted = str(request.config), select_untrusted(environment)
    if request.dry_run and untrusted and not request.trust_environment:
        return describe_untrusted(untrusted, source)
    require_trusted_environment(environment, source, is_trusted=request.trust_environment)
    return "" if request.quiet else describe_accepted(environment, source)


def _fit_tuned(
    request: LaunchRequest,
    tuned: "TunedSettings",
    program: str,
    topology: Topology,
    allocation: Allocation,
    notes: list[str],
) -> dict[str, Any]:
    """Return the parameters of the tuned file that a launcher can set, adapted to this machine if asked."""
    from corewise.launch.code_settings import list_code_settings
    from corewise.launch.tuned_file_fit import drop_unavailable, find_differences, fit_settings, read_fingerprint

    params = dict(tuned.params)
    differences = find_differences(tuned.machine, read_fingerprint(topology, allocation))
    if differences and not request.adapt:
        listed = "\n".join(f"  {difference}" for difference in differences)
        raise UserError(
            f"{request.config} was tuned on another machine:\n{listed}\n"
            "Tune on this machine with `corewise tune`, or pass --adapt to adapt the settings."
        )
    if request.adapt:
        present = [name for name in PRELOADABLE if _find_library(name, program)]
        pages = "[never]" not in _read_huge_page_modes()
        if differences:
            new = fit_settings(params, tuned.machine, topology, allocation.cpus, present, has_huge_pages=pages)
        else:
            new = drop_unavailable(params, present, has_huge_pages=pages)
        params = dict(new.params)
        notes += [f"adapted {change}" for change in new.changes]
        if differences or new.changes:
            notes.append("adapted settings were not measured; `corewise tune` finds the best ones for this machine")
    # For a script, the tuner varied only settings from outside, and set the loader workers by a variable.
    if tuned.subject.command:
        params.pop("loader_workers", None)
    for setting, line in list_code_settings({**params, **request.params}).items():
        notes.append(f"only your code can apply {setting}\n  {line}")
    return {name: params[name] for name in OUTSIDE_DEFAULTS if name in params}


def _find_libraries(params: Mapping[str, Any], program: str, from_file: Mapping[str, str]) -> dict[str, Path]:
    """Return the paths of the libraries to preload."""
    paths = {}
    for option in ("allocator", "openmp"):
        name = str(params[option])
        if name not in PRELOADABLE:
            continue
        path = _find_library(name, program)
        if path is None:
            from corewise.machine.software import find_install_hint

            raise UserError(
                f"{_name_source(option, name, from_file)}: not installed here; {find_install_hint(name)}"
                f"{_describe_skip(option, from_file)}"
            )
        paths[name] = path
    return paths


def _name_source(name: str, value: str, from_file: Mapping[str, str]) -> str:
    """Return the option or the file that a setting came from."""
    if name in from_file:
        return f"{from_file[name]}: {name}: {value}"
    return f"--{name.replace('_', '-')} {value}"


def _describe_skip(name: str, from_file: Mapping[str, str]) -> str:
    """Return how to launch without a setting of the file, as the end of a sentence."""
    return f"; pass --{name.replace('_', '-')} default or --adapt to launch without it" if name in from_file else ""


def _read_huge_page_modes() -> str:
    return read_text(TRANSPARENT_HUGE_PAGES) or "[never]"


def _find_library(name: str, program: str) -> Path | None:
    # Imported only here: launches without preloading do not wait for it.
    from corewise.machine.software import find_library

    return find_library(name, python_prefix=Path(program).absolute().parent.parent)


def _check_huge_pages(params: Mapping[str, Any], notes: list[str], from_file: Mapping[str, str]) -> None:
    if params["huge_pages"] == "default":
        return
    from corewise.machine.software import read_glibc_version

    modes = _read_huge_page_modes()
    if "[never]" in modes:
        raise UserError(
            f"{_name_source('huge_pages', 'transparent', from_file)}: the kernel disables them; "
            f"leave it out, or ask an administrator to write `madvise` to {TRANSPARENT_HUGE_PAGES}"
            f"{_describe_skip('huge_pages', from_file)}"
        )
    if "[always]" in modes:
        notes.append("huge pages: this kernel already uses them for all programs")
    version = tuple(int(part) for part in (read_glibc_version() or "0").split(".")[:2])
    if params["allocator"] == "tcmalloc" or (params["allocator"] != "jemalloc" and version < MIN_GLIBC):
        notes.append("huge pages: this allocator cannot request them; only torch's tensors will use them")
