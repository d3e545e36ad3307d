"""A bundle installs where no index can be reached, measures there, and is refused when it is not whole."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bundling import HAS_NO_NETWORK, Installed, install, make_offline_environment

from corewise.bundle.bundle_maker import BundleResult
from corewise.bundle.payload.install import MARK, SUMS, find_changed_files, hash_file

STORE = Path(__file__).parents[2] / "benchmarks/data/xeon-16-cores/store"
STUDY = """
question: Does a node without scipy measure?
workload: matmul
mode: infer
runtime: numpy
axes: {threads: [1], args.size: [32, 48]}
fixed: {batch: 1}
protocol: {min_runs: 2, max_runs: 3, min_samples: 3, min_sample_s: 0.01, max_warmup_s: 0.2}
"""


def update_checksum(bundle: Path, name: str) -> None:
    """Update the checksum of a file in the bundle."""
    lines = (bundle / SUMS).read_text().splitlines()
    others = [line for line in lines if not line.endswith(f"  {name}")]
    (bundle / SUMS).write_text("\n".join([*others, f"{hash_file(bundle / name)}  {name}"]) + "\n")


def change_description(bundle: Path, **values: str) -> None:
    """Change values in bundle.json."""
    description = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps({**description, **values}))
    update_checksum(bundle, "bundle.json")


def test_a_bundle_installs_and_passes_its_self_test_without_any_network(
    installed: Installed, need: Callable[[bool, str], None]
) -> None:
    need(HAS_NO_NETWORK, "network namespaces (unshare -rn)")
    assert installed.done.returncode == 0, installed.done.stdout + installed.done.stderr
    lines = installed.done.stdout.splitlines()
    assert lines[-1] == "self-test PASSED"
    assert "  ok      a study on numpy runs to its end" in lines
    assert str(installed.prefix / "bin/corewise") in installed.done.stdout


def test_the_node_has_numpy_and_none_of_the_analysis_packages(installed: Installed) -> None:
    code = (
        "import importlib.util as u, numpy\n"
        "names = ('scipy', 'duckdb', 'altair', 'vl_convert', 'torch')\n"
        "print(numpy.__file__, [name for name in names if u.find_spec(name)])"
    )
    command = [str(installed.prefix / "bin/python"), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    where, found = done.stdout.strip().rsplit(" ", 1)
    assert found == "[]"
    assert "own python" in where


def test_a_study_runs_on_the_node_and_a_full_install_reads_its_store(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    for arguments in (["run", "study.yaml", "--store", "store"], ["show", "--store", "store"]):
        done = installed.run_corewise(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    at_home = [sys.executable, "-m", "corewise", "export", "--store", "store"]
    done = subprocess.run(at_home, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [record["status"] for record in json.loads(done.stdout)] == ["ok", "ok"]


@pytest.mark.slow
def test_the_node_shows_the_efficiencies_of_a_study_without_scipy(installed: Installed, tmp_path: Path) -> None:
    done = installed.run_corewise("show", "--store", str(STORE), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert any(0 < row["efficiency"] < 1 for row in json.loads(done.stdout)[0]["rows"])


@pytest.mark.parametrize(
    ("arguments", "package"),
    [(["export", "--store", str(STORE), "-o", "x.parquet"], "duckdb"), (["report", "--store", str(STORE)], "scipy")],
    ids=lambda each: each[0] if isinstance(each, list) else each,
)
def test_a_verb_that_needs_an_analysis_package_advises_to_copy_the_store(
    arguments: list[str], package: str, installed: Installed, tmp_path: Path
) -> None:
    done = installed.run_corewise(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"corewise: this needs {package}, which is not installed here.")
    assert "copy the store" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["run", "--help"], 0), (["run", "--bogus"], 2), (["runn"], 2)]
)
def test_help_and_usage_errors_are_shown(arguments: list[str], code: int, installed: Installed, tmp_path: Path) -> None:
    done = installed.run_corewise(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Usage: corewise" in done.stdout + done.stderr


def test_launch_works(installed: Installed, tmp_path: Path) -> None:
    done = installed.run_corewise("launch", "--threads", "1", "--", "echo", "launched", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "launched\n")


@pytest.mark.parametrize(
    "arguments", [["run", "study.yaml", "--report"], ["tune", "matmul", "--runtime", "numpy", "--report", "x.html"]]
)
def test_a_report_is_refused_before_anything_is_measured(
    arguments: list[str], installed: Installed, tmp_path: Path
) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    done = installed.run_corewise(*arguments, "--store", "store", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("corewise: this needs altair, which is not installed here.")
    assert "leave out --report" in done.stderr
    assert not (tmp_path / "store").exists()


def test_the_self_test_reports_what_failed(installed: Installed, worker: BundleResult, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('this numpy is broken')\n")
    command = ["sh", str(worker.folder / "selftest.sh"), str(installed.prefix)]
    env = make_offline_environment({"PYTHONPATH": str(tmp_path)})
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "  failed  a study on numpy runs to its end: corewise run ended with" in done.stdout
    assert done.stdout.splitlines()[-1] == "self-test FAILED"


@pytest.mark.slow
def test_wheels_can_be_unpacked_without_an_environment(worker: BundleResult, node_python: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "un packed"
    done = install(worker.folder, node_python, "--unpack", "--no-selftest", str(prefix))
    assert done.returncode == 0, done.stderr
    listed = Installed(prefix, done).run_corewise("list", "--json", cwd=tmp_path)
    assert "matmul" in {workload["name"] for workload in json.loads(listed.stdout)["workloads"]}
    again = install(worker.folder, node_python, "--no-selftest", str(prefix))
    assert "installed with another layout" in again.stderr


@pytest.mark.slow
def test_a_second_install_replaces_the_first(installed: Installed, worker: BundleResult, node_python: Path) -> None:
    broken = next((installed.prefix / "lib").glob("python3*")) / "site-packages/corewise/cli/list.py"
    whole = broken.read_text()
    broken.write_text("")
    done = install(worker.folder, node_python, "--no-selftest", str(installed.prefix))
    assert done.returncode == 0, done.stderr
    assert broken.read_text() == whole


@pytest.mark.parametrize("name", ["wheels/rich", "install.sh", "studies/quick.yaml", "bundle.json"])
def test_a_changed_byte_is_refused_and_its_file_named(
    name: str, copied: Path, node_python: Path, tmp_path: Path
) -> None:
    [path] = copied.glob(f"{name}*")
    data = bytearray(path.read_bytes())
    # Change the newline of a text, or the last byte of a wheel.
    data[-1] ^= 1
    path.write_bytes(data)
    done = install(copied, node_python, str(tmp_path / "env"))
    assert done.returncode == 2
    assert f"{path.relative_to(copied)} has changed" in done.stderr
    assert not (tmp_path / "env").exists()


def test_a_missing_and_an_extra_file_are_refused_and_named(copied: Path, node_python: Path, tmp_path: Path) -> None:
    [gone] = copied.glob("wheels/typer*")
    gone.unlink()
    (copied / "wheels/stranger-1.0-py3-none-any.whl").touch()
    done = install(copied, node_python, str(tmp_path / "env"))
    assert done.returncode == 2
    assert f"wheels/{gone.name} is missing" in done.stderr
    assert "wheels/stranger-1.0-py3-none-any.whl is not part of it" in done.stderr
    assert not (tmp_path / "env").exists()


@pytest.mark.slow
def test_an_installation_inside_the_bundle_does_not_count_as_a_change(copied: Path, node_python: Path) -> None:
    for _ in range(2):
        done = install(copied, node_python, "--no-selftest", "--unpack", str(copied / "corewise-env"))
        assert done.returncode == 0, done.stderr
    assert find_changed_files(copied) == []


def test_a_mark_among_the_wheels_does_not_hide_added_files(copied: Path) -> None:
    (copied / "wheels" / MARK).touch()
    (copied / "wheels/stranger-1.0-py3-none-any.whl").touch()
    assert "wheels/stranger-1.0-py3-none-any.whl is not part of it" in find_changed_files(copied)


@pytest.mark.slow
def test_at_most_ten_changed_files_are_named(copied: Path, node_python: Path, tmp_path: Path) -> None:
    for i in range(500):
        (copied / f"stranger-{i}").touch()
    done = install(copied, node_python, str(tmp_path / "env"))
    assert done.returncode == 2
    assert "stranger-0 is not part of it" in done.stderr
    assert "and 490 more files" in done.stderr
    assert len(done.stderr) < 1000


def test_a_bundle_without_its_checksums_is_refused(copied: Path, node_python: Path, tmp_path: Path) -> None:
    (copied / SUMS).unlink()
    assert "SHA256SUMS is missing" in install(copied, node_python, str(tmp_path / "env")).stderr


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"machine": "vax"}, f"this bundle is for vax, but this machine is {platform.machine()}"),
        ({"glibc": "2.99"}, "needs glibc 2.99 or newer, but this machine has glibc"),
    ],
)
def test_a_bundle_for_another_machine_is_refused(
    values: dict[str, str], message: str, copied: Path, node_python: Path, tmp_path: Path
) -> None:
    change_description(copied, **values)
    done = install(copied, node_python, str(tmp_path / "env"))
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_a_bundle_for_another_python_is_refused(copied: Path, tmp_path: Path) -> None:
    script = (copied / "install.sh").read_text()
    (copied / "install.sh").write_text(script.replace(f"wanted='3.{sys.version_info.minor}'", "wanted='3.40'"))
    named = install(copied, sys.executable, str(tmp_path / "env"))
    assert named.returncode == 2
    assert f"this bundle is for Python 3.40, but {sys.executable} is Python 3." in named.stderr
    searched = install(copied, None, str(tmp_path / "env"))
    assert searched.returncode == 2
    assert "PYTHON=/path/to/python3.40 sh install.sh" in searched.stderr
    absent = install(copied, "/nonexistent/python", str(tmp_path / "env"))
    assert "PYTHON=/nonexistent/python does not run" in absent.stderr


def test_a_worker_only_bundle_needs_a_python_with_numpy(worker: BundleResult, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    done = install(worker.folder, tmp_path / "bare/bin/python", str(tmp_path / "env"))
    assert (done.returncode, "has none; name a Python that has it" in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_existing_files_are_not_touched(worker: BundleResult, node_python: Path, tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env/precious").touch()
    done = install(worker.folder, node_python, str(tmp_path / "env"))
    assert (done.returncode, "was not created by install.sh" in done.stderr) == (2, True), done.stderr
    assert os.listdir(tmp_path / "env") == ["precious"]
