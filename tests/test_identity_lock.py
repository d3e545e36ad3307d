"""Measured code cannot change unnoticed: see tests/identity_lock.py."""

from dataclasses import replace
from pathlib import Path

import pytest

from corewise.launch.worker_archive import list_measured_sources, list_native_sources
from corewise.measured import probes, worker
from corewise.run.identity.source_fingerprint import NATIVE_SUFFIXES
from tests import identity_lock
from tests.identity_lock import PACKAGE, REGISTRIES, TREE, Owner, find_owners, find_problems, main, read_lock, update

UNOWNED = {
    "corewise.measured.workloads.kernels.cg.solve",
    "corewise.measured.workloads.kernels.framework_arrays",
    "corewise.measured.workloads.kernels.tiled_product.__main__",
    "corewise.measured.workloads.kernels.tiled_product.multiply",
    "corewise.measured.workloads.kernels.distributed.product_command",
    "corewise.measured.runtimes.torch.communication.launched_ranks",
    "corewise.measured.runtimes.arrays.piece_contract",
    "corewise.accelerate.kernels.__main__",
    "corewise.accelerate.collectives.__main__",
    "corewise.accelerate.malleable.execute.cpp_timing",
    "corewise.accelerate.malleable.marked_branches",
}
# Libraries that users call in their own programs and no trial runs yet.
UNOWNED_FOLDERS = {PACKAGE / "cluster", PACKAGE / "accelerate" / "batching"}

OWNERS = {"workload a": Owner(1, "the registry", frozenset()), "runtime b": Owner(2, "the registry", frozenset())}
LOCK = {name: {"version": each.version, "fingerprint": each.fingerprint} for name, each in OWNERS.items()}
CHANGED = {**LOCK, "workload a": {"version": 1, "fingerprint": "another"}}


def test_the_lock_holds() -> None:
    problems = find_problems(read_lock(), find_owners())
    assert not problems, "\n" + "\n".join(problems)


def test_engines_with_native_code_own_it_and_runtimes_do_not() -> None:
    native = {PACKAGE / path for path in list_native_sources() if path.suffix in NATIVE_SUFFIXES}
    kernels = {path for path in native if path.is_relative_to(PACKAGE / "accelerate" / "kernels")}
    assert kernels
    owners = find_owners()
    for name in ("execution malleable", "execution fast-kernels", "freezing full"):
        assert kernels <= owners[f"torch {name}"].files, name
    for name, owner in owners.items():
        if name.startswith(("workload", "runtime", "torch execution compile")):
            assert not native & owner.files, name


def test_workloads_own_no_runtime_and_runtimes_no_workload() -> None:
    owners = find_owners()
    runtimes = {name: owner.files for name, owner in owners.items() if name.startswith("runtime")}
    workloads = {name: owner.files for name, owner in owners.items() if name.startswith("workload")}
    # Modules that read the machine, hold parameters or pass messages belong to both.
    folders = (PACKAGE / "measured", PACKAGE / "measured" / "runtimes" / "communication")
    shared = frozenset.intersection(*runtimes.values()) | {file for folder in folders for file in folder.glob("*.py")}
    for name, files in runtimes.items():
        assert len(files - shared) > 5, name
        for workload, others in workloads.items():
            assert not (files - shared) & others, (name, workload)


def test_every_measured_module_has_an_owner_except_commands_and_instruments() -> None:
    """Add a module to UNOWNED only if no trial runs it; otherwise the lock misses how it is loaded."""
    owned = {file for owner in find_owners().values() for file in owner.files}
    measuring = [Path(str(each.__file__)).parent for each in (worker, probes)]
    others = {
        TREE.build_module_name(path)
        for path in (PACKAGE / each for each in list_measured_sources())
        if path not in owned
        and path.stat().st_size
        and path not in REGISTRIES
        and not any(path.is_relative_to(folder) for folder in (*measuring, *UNOWNED_FOLDERS))
    }
    assert others == UNOWNED


@pytest.mark.parametrize(
    ("lock", "owners", "message"),
    [
        (CHANGED, OWNERS, "workload a: version 1 in the registry"),
        (CHANGED, OWNERS, '--unchanged "REASON" --only "workload a"'),
        ({"runtime b": LOCK["runtime b"]}, OWNERS, "workload a is new. Type:\n  python -m tests.identity_lock"),
        (LOCK, {"runtime b": OWNERS["runtime b"]}, "workload a is no longer in a registry"),
        (LOCK, {**OWNERS, "runtime b": replace(OWNERS["runtime b"], version=3)}, "version 2 in the lock and 3"),
    ],
)
def test_outdated_entries_are_listed_with_the_command_to_type(
    lock: dict[str, dict[str, object]], owners: dict[str, Owner], message: str
) -> None:
    [problem] = find_problems(lock, owners)
    assert message in problem
    assert not find_problems(LOCK, OWNERS)


def test_a_change_needs_a_version_or_a_reason() -> None:
    assert update(CHANGED, OWNERS) == CHANGED
    assert update(CHANGED, OWNERS, "renamed", ["runtime b"]) == CHANGED
    explained = update(CHANGED, OWNERS, "renamed and moved")
    assert explained == {**LOCK, "workload a": {**LOCK["workload a"], "unchanged": "renamed and moved"}}
    raised = {**OWNERS, "workload a": replace(OWNERS["workload a"], version=2)}
    assert update(CHANGED, raised) == {**LOCK, "workload a": {**LOCK["workload a"], "version": 2}}
    assert update(explained, OWNERS) == explained


def test_entries_follow_the_registries() -> None:
    fewer = {"runtime b": OWNERS["runtime b"], "workload c": OWNERS["workload a"]}
    assert update(LOCK, fewer) == {"runtime b": LOCK["runtime b"], "workload c": LOCK["workload a"]}


def test_the_command_rewrites_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "identity.lock.json"
    committed = identity_lock.LOCK.read_text()
    lock.write_text(committed.replace('"fingerprint": "', '"fingerprint": "0'))
    monkeypatch.setattr(identity_lock, "LOCK", lock)
    assert main([]) == 1
    assert '--unchanged "REASON"' in capsys.readouterr().err
    assert main(["--unchanged", "renamed and moved"]) == 0
    assert {entry["unchanged"] for entry in read_lock().values()} == {"renamed and moved"}
    assert main([]) == 0
    with pytest.raises(SystemExit):
        main(["--unchanged", "renamed", "--only", "workload resnet"])
    assert "workload resnet50" in capsys.readouterr().err
