import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.launch.worker_archive import build_worker
from corewise.measured.cache_sizes import Cache
from corewise.measured.parameters import TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, Trial
from corewise.run.cachegrind_count import (
    LINE_BYTES,
    CountFailure,
    CountRequest,
    build_cache_options,
    build_count_command,
    build_count_environment,
    choose_num_steps,
    count_with_cachegrind,
    fit_ways,
    parse_counts,
)

Need = Callable[[bool, str], None]
KIB, MIB = 1 << 10, 1 << 20
CACHES = (
    Cache(1, "Data", 48 * KIB, (0,)),
    Cache(1, "Instruction", 32 * KIB, (0,)),
    Cache(2, "Unified", MIB, (0,)),
    Cache(3, "Unified", 36 * MIB, (0, 1)),
)
# Two instructions in each iteration.
NUM_ITERATIONS = 2_000_000
LOOP = f"""
import ctypes, mmap

# loop: dec rdi; jnz loop; ret
CODE = bytes([0x48, 0xFF, 0xCF, 0x75, 0xFB, 0xC3])

def make(batch, mode):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(CODE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    run = ctypes.CFUNCTYPE(None, ctypes.c_long)(address)
    # The page lives as long as the step.
    return {{"step": lambda page=page: run({NUM_ITERATIONS}), "samples_per_step": 1}}
"""


def build_trial(workload: str = "matmul", python: tuple[str, ...] = (sys.executable,), **params: object) -> Trial:
    values = {"workload": workload, "mode": "infer", "runtime": "numpy", "batch": 1, **params}
    env = {"OMP_NUM_THREADS": "8", "MALLOC_TOP_PAD_": "1"}
    return Trial("id", TrialParameters.from_mapping(values), Protocol(), (RankPlacement((0,)),), env, python)


def build_request(trial: Trial, worker: Path = Path("worker.pyz"), limit_s: float = 600.0) -> CountRequest:
    return CountRequest(trial, worker, 0.1, 0.0, 0.0, CACHES, 1 << 40, limit_s)


def test_the_simulated_caches_have_the_sizes_of_the_machines() -> None:
    options = build_cache_options(CACHES)
    assert sorted(options) == ["--D1=49152,6,64", "--I1=32768,8,64", f"--LL={36 * MIB},18,64"]
    assert build_cache_options(()) == []


@pytest.mark.parametrize("size", [32 * KIB, 48 * KIB, MIB, 36 * MIB, 105 * MIB, 96 * MIB])
def test_the_number_of_sets_is_a_power_of_two(size: int) -> None:
    sets = size // LINE_BYTES // fit_ways(size, 16)
    assert sets * LINE_BYTES * fit_ways(size, 16) == size
    assert sets & (sets - 1) == 0


def test_short_steps_are_counted_together() -> None:
    assert choose_num_steps(2.0) == 1
    assert choose_num_steps(0.01) == 5
    assert choose_num_steps(0.0) == 500


def test_counts_are_read_from_the_sums_of_the_file() -> None:
    text = "events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\nfn=main\nsummary: 1000 9 1 300 8 2 200 7 3\n"
    assert parse_counts(text) == {"instructions": 1000.0, "llc_misses": 6.0}


@pytest.mark.parametrize("text", ["", "events: Ir\nsummary: 5\n", "events: Ir ILmr\nsummary: 5\n", "summary: x\n"])
def test_a_truncated_file_is_refused(text: str) -> None:
    with pytest.raises(CountFailure, match="cannot be read"):
        parse_counts(text)


def test_valgrind_stands_between_the_prefix_and_the_interpreter() -> None:
    trial = build_trial(python=("apptainer", "exec", "image.sif", "python3"))
    command = build_count_command(trial, Path("/w.pyz"), 2, Path("/tmp/f"), ["--D1=1,2,64"])
    assert command[:5] == ("apptainer", "exec", "image.sif", "valgrind", "--tool=cachegrind")
    assert command[-7:] == ("python3", "/w.pyz", "count", "--steps", "2", "--out", "/tmp/f")
    assert "--D1=1,2,64" in command


def test_the_reduced_run_has_one_thread_and_no_avx512() -> None:
    env = build_count_environment(build_trial(), {"PATH": "/bin", "OMP_PROC_BIND": "true"})
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["ATEN_CPU_CAPABILITY"] == "avx2"
    assert env["ONEDNN_MAX_CPU_ISA"] == env["MKL_ENABLE_INSTRUCTIONS"] == "AVX2"
    assert env["MALLOC_TOP_PAD_"] == "1"
    assert "OMP_PROC_BIND" not in env
    assert build_count_environment(build_trial(isa="sse41"), {})["ATEN_CPU_CAPABILITY"] == "default"


@pytest.mark.parametrize(
    ("params", "expected"),
    [({"isa": "avx512"}, "no AVX-512"), ({"device": "cuda"}, "CPU only"), ({"execution": "compile"}, "compile")],
)
def test_what_cachegrind_cannot_count_becomes_a_note(
    params: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/valgrind")
    count = count_with_cachegrind(build_request(build_trial(**params)))
    assert count.metrics == {}
    assert count.notes[0].startswith("no counts by cachegrind: ")
    assert expected in count.notes[0]


def test_without_valgrind_the_note_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    count = count_with_cachegrind(build_request(build_trial()))
    assert count.metrics == {}
    assert "valgrind is not on the PATH" in count.notes[0]
    assert "install" in count.notes[0]


def test_a_python_without_the_workload_becomes_a_note(need: Need, tmp_path: Path) -> None:
    need(shutil.which("valgrind") is not None, "valgrind is not installed")
    trial = build_trial(python=(shutil.which("false") or "/bin/false",))
    count = count_with_cachegrind(build_request(trial, tmp_path / "none.pyz"))
    assert "the run under valgrind ended with code 1" in count.notes[0]


@pytest.mark.slow
def test_a_loop_of_known_length_is_counted_exactly(need: Need, tmp_path: Path) -> None:
    need(shutil.which("valgrind") is not None, "valgrind is not installed")
    file = tmp_path / "loop.py"
    file.write_text(LOOP)
    trial = build_trial(f"{file}:make")
    count = count_with_cachegrind(build_request(trial, build_worker()))
    assert count.metrics, count.notes
    # Calling the loop from Python takes a few thousand instructions.
    assert count.metrics["cachegrind_instructions_per_sample"] == pytest.approx(2 * NUM_ITERATIONS, rel=0.01)
    assert count.metrics["cachegrind_mpki"] < 1
    assert "no AVX-512" in count.notes[0]


@pytest.mark.slow
def test_a_count_that_takes_too_long_is_ended_with_its_processes(need: Need) -> None:
    need(shutil.which("valgrind") is not None, "valgrind is not installed")
    count = count_with_cachegrind(build_request(build_trial(), build_worker(), limit_s=1.0))
    assert "did not end within 1 s" in count.notes[0]
