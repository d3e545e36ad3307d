"""How scripts are sampled: paused, restarted, or as whole runs."""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.tuning.scripts import script_arena
from corewise.tuning.scripts.script_arena import SamplingMethod, ScriptArena
from corewise.tuning.scripts.script_command import Script
from corewise.tuning.scripts.throughput_parser import read_rate_pattern
from corewise.tuning.scripts.working_folder import MAX_COPIED_BYTES
from corewise.tuning.search.arena import Rejection
from corewise.tuning.search.setting_space import Knob, Space

SPACE = Space({"processes": 1, "threads": 1, "bind": "none"}, (Knob("wait", ({}, {"wait_policy": "passive"})),))
DEFAULT, OTHER = (0,), (1,)
Make = Callable[..., ScriptArena]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(script_arena, "SAMPLE_S", 0.1)
    monkeypatch.setattr(script_arena, "MIN_PAUSE_S", 1.0)
    arenas = []

    def build(body: str, throughput: str = "", check: str = "") -> ScriptArena:
        (tmp_path / "train.py").write_text(f"import itertools, os, time\n{body}")
        script = Script(
            (sys.executable, "train.py"),
            tmp_path,
            read_rate_pattern(throughput) if throughput else None,
            check=re.compile(check) if check else None,
        )
        arenas.append(ScriptArena(script, SPACE, tmp_path / "arena"))
        return arenas[-1]

    yield build
    for arena in arenas:
        arena.close()


def test_a_rate_that_is_printed_once_at_the_end_counts_for_the_run(make: Make) -> None:
    arena = make("time.sleep(0.1)\nprint('512.5 img/s')", "(.*) img/s")
    entrant = arena.enter(DEFAULT, 60.0)
    assert [entrant.sample().throughput for _ in range(2)] == [512.5, 512.5]
    assert arena.method is SamplingMethod.WHOLE_RUNS


def test_one_report_at_the_end_counts_over_the_run(make: Make) -> None:
    arena = make("import corewise\ntime.sleep(0.1)\ncorewise.report_progress(samples=10)")
    assert 0 < arena.enter(DEFAULT, 60.0).sample().throughput < 10 / 0.1
    assert arena.method is SamplingMethod.WHOLE_RUNS


@pytest.mark.parametrize(
    ("printed", "method"),
    [("100 * worked_s / (time.time() - began)", SamplingMethod.RESTARTED), ("100.0", SamplingMethod.PAUSED)],
    ids=["average", "rate"],
)
def test_averages_since_the_start_are_detected_by_a_pause(make: Make, printed: str, method: SamplingMethod) -> None:
    loop = f"""
began = last = time.time()
worked_s = 0.0
while True:
    time.sleep(0.01)
    last, before = time.time(), last
    worked_s += min(last - before, 0.3)  # delays on a busy machine count as work, the pause does not
    print({printed}, 'img/s')
"""
    arena = make(loop, "(.*) img/s")
    entrant = arena.enter(DEFAULT, 60.0)
    entrant.sample()
    entrant.sample()
    assert arena.method is method


def test_the_memory_of_a_launched_script_excludes_the_launcher(make: Make) -> None:
    loop = "for n in itertools.count():\n    time.sleep(0.01)\n    print(100, 'img/s')"
    arena = make(loop, "(.*) img/s")
    alone, launched = (arena.enter(each, 60.0).sample().memory_bytes for each in (DEFAULT, OTHER))
    assert 0 < launched < 1.5 * alone


def test_the_time_of_a_launched_run_excludes_the_launcher(make: Make) -> None:
    start = make("time.sleep(0.1)").start_script(OTHER)
    assert start.process.wait(60.0)
    start.require_good_end()
    launcher_s = start.process.read_end().seconds
    assert 0.1 < start.compute_seconds() < launcher_s
    start.end()


def test_a_later_number_that_differs_is_detected(make: Make) -> None:
    body = "for n in range(5):\n    print('loss', 1.0 if n < 4 else time.time() % 1000)\n    time.sleep(0.02)"
    arena = make(
        f"{body}\nfor n in itertools.count():\n    time.sleep(0.02)\n    print(9, 'img/s')", "(.*) img/s", "loss (.*)"
    )
    arena.enter(DEFAULT, 60.0)
    assert arena.compare_defaults(60.0) > 0


def test_a_default_that_prints_nan_is_rejected(make: Make) -> None:
    with pytest.raises(Rejection, match="it prints nan"):
        make("print('9 img/s')\nprint('loss nan')", "(.*) img/s", "loss (.*)").enter(DEFAULT, 60.0)


def test_a_missing_file_is_reported_with_the_folder_and_the_remedy(make: Make, tmp_path: Path) -> None:
    with pytest.raises(Rejection, match=f"private mirror of {tmp_path}.*--workdir here"):
        make("open('../../data.txt')").enter(DEFAULT, 60.0)


def test_files_of_the_user_are_read_by_relative_paths_and_never_changed(make: Make, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "input.txt").write_text("from the user")
    body = """
assert open("data/input.txt").read() == "from the user"
for name in ("data/input.txt", "data/new.txt", "model.pt"):
    open(name, "w").write("from a start")
"""
    arena = make(body)
    for setting in (DEFAULT, OTHER):
        arena.enter(setting, 60.0).sample()
    assert (tmp_path / "data" / "input.txt").read_text() == "from the user"
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["input.txt"]
    assert not (tmp_path / "model.pt").exists()


def test_a_start_that_overwrites_a_large_file_is_ended_before_it_changes(make: Make, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"x" * (MAX_COPIED_BYTES + 1))
    arena = make("assert open('model.pt').read(1) == 'x'\nopen('model.pt', 'w').write('lost')")
    with pytest.raises(UserError, match=r"model\.pt for writing.*before the file changed.*--workdir here"):
        arena.enter(DEFAULT, 60.0)
    arena.close()
    assert (tmp_path / "model.pt").stat().st_size == MAX_COPIED_BYTES + 1


def test_starts_may_run_in_the_folder_of_the_user(make: Make, tmp_path: Path) -> None:
    arena = make("open('made', 'a').write('x')")
    arena.script = replace(arena.script, workdir=tmp_path)
    for _ in range(2):
        arena.start_script(DEFAULT).process.wait(60.0)
    assert (tmp_path / "made").read_text() == "xx"


def test_a_script_may_use_the_names_of_our_files(make: Make) -> None:
    arena = make("os.mkdir('output')\nopen('progress', 'x')")
    arena.enter(DEFAULT, 60.0)
    assert arena.is_timed


def test_a_default_with_something_fixed_is_launched_with_it(make: Make) -> None:
    arena = make("assert os.environ['OMP_NUM_THREADS'] == '1'")
    arena.script = replace(arena.script, default_is_launched=True)
    arena.enter(DEFAULT, 60.0)
    assert arena.is_timed


def test_a_script_whose_rate_does_not_match_is_rejected_with_its_output(make: Make) -> None:
    arena = make("for n in itertools.count():\n    time.sleep(0.01)\n    print('working')", "(.*) img/s")
    # On a busy machine the script prints late.
    for limit_s in (1, 4, 16):
        with pytest.raises(Rejection, match=f"nothing that matches --throughput within {limit_s} s") as refused:
            arena.enter(DEFAULT, float(limit_s))
        if str(refused.value).endswith("; killed: working"):
            break
    assert str(refused.value).endswith("; killed: working")
    with pytest.raises(Rejection, match="without printing anything that matches --throughput: done"):
        make("print('done')", "(.*) img/s").enter(DEFAULT, 60.0)
