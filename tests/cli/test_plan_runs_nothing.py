"""`corewise plan` runs nothing of a study; `--probe` runs what it needs to know all ids."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from corewise.machine.software import LAUNCHERS

# Prints the programs that a command starts, as one line of JSON on standard error.
WATCHED = """
import json, sys
started = []
def note(event, arguments):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork"):
        started.append([event, str(arguments[0]) if arguments else ""])
sys.addaudithook(note)
from corewise.cli.main import main
try:
    main()
finally:
    print(json.dumps(started), file=sys.stderr)
"""
STUDY = """
question: Who runs?
workload: own.py:make
mode: infer
runtime: numpy
python: env/bin/python
axes: {threads: [1, 60000]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study whose every part leaves a mark when it runs: file, interpreter, prefix, start-up module, plug-in."""
    mark = f"open({str(tmp_path / 'marks')!r}, 'a').write"
    (tmp_path / "own.py").write_text(f"{mark}('own file\\n')\ndef make(batch, mode): ...\n")
    venv.create(tmp_path / "env", symlinks=True)
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup/sitecustomize.py").write_text(f"{mark}('start-up module\\n')\n")
    (tmp_path / "prefix.sh").write_text(f'#!/bin/sh\necho prefix >> {tmp_path}/marks\nexec "$@"\n')
    (tmp_path / "prefix.sh").chmod(0o755)
    info = tmp_path / "plugins/theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[corewise.workloads]\ntheirs = theirs:MATMUL\n")
    (tmp_path / "plugins/theirs.py").write_text(
        f"{mark}('plug-in\\n')\nfrom corewise.measured.workloads.primitives.matmul import MATMUL\n"
    )
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path


def plan(folder: Path, *options: str, study: str = "study.yaml") -> tuple[dict[str, Any], list[list[str]], str]:
    """Return the plan, the programs that were started, and the messages."""
    env = {**os.environ, "PYTHONPATH": str(folder / "plugins")}
    command = [sys.executable, "-c", WATCHED, "plan", study, "--json", *options]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *messages, started = done.stderr.splitlines()
    watched = [each for each in json.loads(started) if not each[1].endswith("nvidia-smi")]
    return json.loads(done.stdout), watched, "\n".join(messages)


def read_marks(folder: Path) -> set[str]:
    file = folder / "marks"
    return set(file.read_text().splitlines()) if file.exists() else set()


def test_the_ids_of_another_interpreter_are_read_from_its_files(folder: Path) -> None:
    silent, started, _ = plan(folder)
    assert (started, read_marks(folder)) == ([], set())
    (trial,) = silent["trials"]
    assert (trial["unknown_id_reason"], trial["is_done"]) == (None, False)
    probed, started, _ = plan(folder, "--probe")
    assert [Path(program).name for _, program in started] == ["python"]
    assert probed == silent


@pytest.mark.parametrize(
    ("line", "reason", "marks"),
    [
        ("prefix: {folder}/prefix.sh", "the prefix `{folder}/prefix.sh` decides", {"prefix"}),
        ("environment: {{PYTHONPATH: '{folder}/startup'}}", "sitecustomize.py runs when", {"start-up module"}),
    ],
)
def test_what_only_code_can_answer_is_unknown_until_it_is_probed(
    folder: Path, line: str, reason: str, marks: set[str]
) -> None:
    (folder / "study.yaml").write_text(STUDY + line.format(folder=folder) + "\n")
    silent, started, _ = plan(folder)
    assert (started, read_marks(folder)) == ([], set())
    for point in (*silent["trials"], *silent["skipped"]):
        assert point["trial_id"] is None
        assert point["is_done"] is None
        assert reason.format(folder=folder) in point["unknown_id_reason"]
    assert silent["trials"][0]["command"].endswith("TRIALS/ID.json --out TRIALS/ID-results")
    assert silent["trials"][0]["ranks"] != []
    assert silent["estimated_s"] > 0
    probed, _, _ = plan(folder, "--probe", "--trust-environment")
    assert read_marks(folder) == marks
    assert all(point["trial_id"] for point in (*probed["trials"], *probed["skipped"]))


def test_a_workload_of_another_package_is_imported_only_when_probed(folder: Path) -> None:
    (folder / "study.yaml").write_text("workload: [matmul, theirs]\nmode: infer\nruntime: numpy\n")
    silent, started, _ = plan(folder)
    assert (started, read_marks(folder)) == ([], set())
    built_in, theirs = silent["trials"]
    assert (len(built_in["trial_id"]), theirs["trial_id"]) == (16, None)
    assert "theirs is a workload of another package" in theirs["unknown_id_reason"]
    probed, _, _ = plan(folder, "--probe")
    assert read_marks(folder) == {"plug-in"}
    assert probed["trials"][0]["trial_id"] == built_in["trial_id"]
    assert probed["trials"][1]["params"]["args.size"] == built_in["params"]["args.size"]


def test_files_named_by_unknown_ids_are_refused(folder: Path) -> None:
    (folder / "study.yaml").write_text(STUDY + "prefix: nice\n")
    command = [sys.executable, "-m", "corewise", "plan", "study.yaml", "--write", "trials"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--write: the files are named by ids, which are unknown: the prefix `nice`" in done.stderr
    assert "pass --probe" in done.stderr
    assert not (folder / "trials").exists()


def test_a_program_of_the_current_folder_is_not_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia-smi", *LAUNCHERS):
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {folder}/marks\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    plan(folder)
    assert read_marks(folder) == set()
