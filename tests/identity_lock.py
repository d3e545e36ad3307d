"""The identity lock: measured code cannot change unnoticed while its version stays the same.

Every workload, runtime and engine has a version in its registry, which is part of the identity of trials.
`identity.lock.json` maps each to its version and to a fingerprint of its code. If a fingerprint changes,
raise the version in the registry, or record in the lock why the work is unchanged:

    python -m tests.identity_lock                        # after raising, adding or removing versions
    python -m tests.identity_lock --unchanged "REASON"   # all others still compute the same, as fast
    python -m tests.identity_lock --unchanged "REASON" --only "workload resnet50"
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import corewise
from corewise.measured.runtimes import registry as runtime_registry
from corewise.measured.runtimes.registry import ENGINES
from corewise.measured.workloads import registry as workload_registry
from corewise.measured.workloads.registry import RegistryEntry, load_attribute
from corewise.run.identity.source_fingerprint import NATIVE_SUFFIXES, SourceTree

LOCK = Path(__file__).with_name("identity.lock.json")
PACKAGE = Path(corewise.__file__).parent
TREE = SourceTree(PACKAGE.parent, PACKAGE.name)
# Data files that modules of the same folder read.
DATA_SUFFIXES = (".txt",)
# No closure extends beyond the registries and the package file, because they can load everything.
REGISTRIES = tuple(Path(str(each.__file__)) for each in (workload_registry, runtime_registry, corewise))
COMMAND = f"python -m {__spec__.name if __name__ == '__main__' else __name__}"


@dataclass(frozen=True)
class Owner:
    """A workload, runtime or engine with its version and its files."""

    version: int
    declared_in: str
    files: frozenset[Path]

    @property
    def fingerprint(self) -> str:
        return TREE.compute_fingerprint(self.files)[:16]


@cache
def find_owners() -> Mapping[str, Owner]:
    """Find all workloads, runtimes and engines by their names in the lock.

    A workload owns the files that it imports. A runtime owns the files that it imports and its builders of
    workloads, but neither workloads nor engines. An engine owns its imports that its runtime does not import.
    """
    registered = {**workload_registry.BUILT_IN, **workload_registry.UNLISTED}
    owners = {f"workload {name}": _own(each, workload_registry) for name, each in registered.items()}
    folder = Path(str(workload_registry.__file__)).parent
    of_workloads = {f for each in owners.values() for f in each.files if f.is_relative_to(folder)}
    named = {target for file in of_workloads if file.suffix == ".py" for target in TREE.find_targets(file)}
    named |= {_file_of(target) for each in registered.values() for target in _builders(each)}
    for name, runtime in runtime_registry.BUILT_IN.items():
        engines = {(a, v): each for a, axis in ENGINES.get(name, {}).items() for v, each in axis.items()}
        of_engines = _engine_files([_file_of(each.target) for each in engines.values() if each.target], of_workloads)
        for_it = {file for file in named if file.is_relative_to(_file_of(runtime.target).parent)}
        own = _own(runtime, runtime_registry, of_workloads | of_engines, for_it)
        owners[f"runtime {name}"] = own
        for (axis, value), engine in engines.items():
            owners[f"{name} {axis} {value}"] = _own(engine, runtime_registry, of_workloads | own.files)
    return owners


def read_lock() -> dict[str, dict[str, Any]]:
    """Read the entries of the committed lock."""
    entries: dict[str, dict[str, Any]] = json.loads(LOCK.read_text(encoding="utf-8"))
    return entries


def find_problems(lock: Mapping[str, Mapping[str, Any]], owners: Mapping[str, Owner]) -> list[str]:
    """Find the entries of the lock that are outdated, and say what to type in each case."""
    outdated = [f"{name} is no longer in a registry" for name in sorted(lock.keys() - owners.keys())]
    outdated += [f"{name} is new" for name in owners if name not in lock]
    outdated += [
        f"{name} has version {lock[name]['version']} in the lock and {owner.version} in {owner.declared_in}"
        for name, owner in owners.items()
        if name in lock and owner.version != lock[name]["version"]
    ]
    problems = [f"{'; '.join(outdated)}. Type:\n  {COMMAND}"] if outdated else []
    changed = find_unexplained(lock, owners)
    if changed:
        names = "".join(f"\n  {n}: version {owners[n].version} in {owners[n].declared_in}" for n in changed)
        problems.append(
            f"the code of these changed, but not their versions:{names}\n"
            "Where results or speed may differ, raise the version there by 1, then type:\n"
            f"  {COMMAND}\n"
            "Where the same is computed at the same speed, say why instead; for all of them, or for one:\n"
            f'  {COMMAND} --unchanged "REASON"\n'
            f'  {COMMAND} --unchanged "REASON" --only "{changed[0]}"\n'
            f"Commit {LOCK.name} together with the change."
        )
    return problems


def find_unexplained(lock: Mapping[str, Mapping[str, Any]], owners: Mapping[str, Owner]) -> list[str]:
    """Find the entries whose code changed while their version stayed the same."""
    return [
        name
        for name, owner in owners.items()
        if name in lock and owner.version == lock[name]["version"] and owner.fingerprint != lock[name]["fingerprint"]
    ]


def update(
    lock: Mapping[str, Mapping[str, Any]], owners: Mapping[str, Owner], reason: str = "", only: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Update the entries that a new version or a reason explains; others stay unchanged."""
    unexplained = find_unexplained(lock, owners)
    updated: dict[str, dict[str, Any]] = {}
    for name, owner in owners.items():
        entry: dict[str, Any] = {"version": owner.version, "fingerprint": owner.fingerprint}
        is_known = name in lock and owner.version == lock[name]["version"]
        if name in unexplained and reason and (not only or name in only):
            entry["unchanged"] = reason
        elif is_known:
            entry = dict(lock[name])
        updated[name] = entry
    return updated


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the lock; return 1 if a change has neither a new version nor a reason."""
    parser = argparse.ArgumentParser(description="Rewrite the identity lock after a change of the code.")
    parser.add_argument("--unchanged", metavar="REASON", default="", help="why the work is unchanged")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="for this entry only")
    options = parser.parse_args(argv)
    owners = find_owners()
    unknown = set(options.only) - owners.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(owners)}")
    before = read_lock() if LOCK.exists() else {}
    updated = update(before, owners, options.unchanged, options.only)
    LOCK.write_text(json.dumps(updated, indent=2) + "\n", encoding="utf-8")
    num_changed = sum(before.get(name) != entry for name, entry in updated.items())
    print(f"{LOCK.name}: {num_changed} of {len(updated)} entries changed")
    problems = find_problems(updated, owners)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _own(registered: RegistryEntry, registry: Any, borders: Collection[Path] = (), more: Iterable[Path] = ()) -> Owner:
    start = [_file_of(registered.target)] if registered.target else []
    python = TREE.collect_closure([*start, *more], {*borders, *REGISTRIES})
    return Owner(registered.version, registry.__name__, frozenset(python | _list_data_files(python)))


def _engine_files(modules: Sequence[Path], borders: Collection[Path]) -> set[Path]:
    """List the modules of engines and those that lead to native code: the runtime is also timed without."""
    reached = TREE.collect_closure(modules, {*borders, *REGISTRIES})
    return {*modules, *(file for file in reached if _leads_to_native_code(file))}


def _leads_to_native_code(file: Path) -> bool:
    files = _list_data_files(TREE.collect_closure([file], REGISTRIES))
    return any(each.suffix in NATIVE_SUFFIXES for each in files)


def _list_data_files(python: Iterable[Path]) -> set[Path]:
    """List the C++ and data files in the folders of the modules."""
    suffixes = (*NATIVE_SUFFIXES, *DATA_SUFFIXES)
    folders = {file.parent for file in python}
    return {each for folder in folders for each in folder.iterdir() if each.suffix in suffixes}


def _builders(workload: RegistryEntry) -> Iterable[str]:
    """List the targets with which runtimes build a workload."""
    builders: Mapping[str, str] = getattr(load_attribute(workload.target), "builders", {})
    return builders.values()


def _file_of(target: str) -> Path:
    file = TREE.find(target.partition(":")[0])
    assert file is not None, f"{target} names no module of ours"
    return file


if __name__ == "__main__":
    sys.exit(main())
