"""The tiled product: results, memory, kills, full disks, damaged files, and the command."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, arrays_of_any, need_framework
from tests.measured.workloads.kernels.separate_device import SeparateDevice

from corewise.measured.pinning import is_helper
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.workloads.kernels.kernel import KernelSetup
from corewise.measured.workloads.kernels.tiled_product import multiply
from corewise.measured.workloads.kernels.tiled_product import run as tiled_product_run
from corewise.measured.workloads.kernels.tiled_product.__main__ import main
from corewise.measured.workloads.kernels.tiled_product.factor_sources import open_npy
from corewise.measured.workloads.kernels.tiled_product.pipeline import Factors, MultiplicationReport
from corewise.measured.workloads.kernels.tiled_product.product_check import check_product
from corewise.measured.workloads.kernels.tiled_product.run import count_tiles_within, read_resident_bytes
from corewise.measured.workloads.kernels.tiled_product.tile_files import TileFolder, TileGrid
from corewise.measured.workloads.kernels.tiled_product.workload import TILED_PRODUCT

Need = Callable[[bool, str], None]
COMMAND = [sys.executable, "-m", "corewise.measured.workloads.kernels.tiled_product", "--runtime", "numpy"]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture(params=["numpy", "torch", *FRAMEWORKS])
def arrays(request: pytest.FixtureRequest, need: Need) -> Any:
    return arrays_of_any(request.param, need)


def build_run(arrays: Any, folder: Path, dtype: str = "float32", /, **args: Any) -> Any:
    args = {**TILED_PRODUCT.parameters, **args}
    return TILED_PRODUCT.build(KernelSetup(arrays, dtype, args, seed=2, folder=str(folder), num_threads=1))


def read_matrix(matrix: Any) -> Any:
    """The matrix put together from its tiles."""
    grid = matrix.grid
    found = np.empty((grid.num_rows, grid.num_columns), matrix.dtype)
    for row, column in grid.iterate_tiles():
        tile = matrix.read((row, column), np.empty(grid.tile**2, matrix.dtype))
        top, left = row * grid.tile, column * grid.tile
        found[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return found


def run_command(*arguments: object) -> Any:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, env=ONE_THREAD)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [7, 64, 100])
def test_every_number_of_the_product_is_right(arrays: Any, tmp_path: Path, dtype: str, size: int) -> None:
    run = build_run(arrays, tmp_path, dtype, size=size, tile=16)
    # A second step reuses the same buffers.
    for _ in range(2):
        run.step()
    a, b, c = (read_matrix(matrix).astype(np.float64) for matrix in (run._factors.a, run._factors.b, run._factors.c))
    assert np.allclose(c, a @ b, rtol=1e-4, atol=1e-4 if dtype == "float32" else 1e-12)
    assert run.check().passed
    facts = run.read_facts()
    assert facts["num_tiles_written"] == (-(-size // min(16, size))) ** 2
    json.dumps(facts)
    run.close()
    assert not list(tmp_path.iterdir())


def test_a_device_with_separate_memory_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_product_run, "load_pieces", SeparateDevice)
    run = build_run(NumpyArrays(), tmp_path, size=100, tile=16)
    run.step()
    a, b, c = (read_matrix(matrix) for matrix in (run._factors.a, run._factors.b, run._factors.c))
    assert np.allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    assert run.check().passed
    assert len(run._pieces.threads) >= 1


def test_threads_that_read_and_write_may_use_all_cpus_and_are_known_as_helpers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    read = TileFolder.read

    def read_and_record(self: TileFolder, tile: Any, out: Any) -> Any:
        name = Path("/proc/thread-self/comm").read_text().strip()
        seen.add((is_helper(name), frozenset(os.sched_getaffinity(0))))
        return read(self, tile, out)

    run = build_run(NumpyArrays(), tmp_path, size=100, tile=16)
    everywhere = os.sched_getaffinity(0)
    monkeypatch.setattr(TileFolder, "read", read_and_record)
    # `bind: core` does the same with the multiplying thread.
    os.sched_setaffinity(0, {min(everywhere)})
    try:
        run.step()
    finally:
        os.sched_setaffinity(0, everywhere)
    assert seen == {(True, frozenset(everywhere))}


def test_the_check_from_the_files_finds_one_wrong_number(tmp_path: Path) -> None:
    run = build_run(NumpyArrays(), tmp_path, size=100, tile=32)
    assert run.check().passed
    c = run._factors.c
    tile = c.read((3, 1), np.empty(1024, np.float32)).copy()
    tile[2, 7] += 0.1
    c.write((3, 1), tile)
    assert not check_product(run._factors, np.empty(1024, np.float32), lambda *_: None).passed


def write_factors(folder: Path, a: Any, b: Any) -> Any:
    """Write the factors as .npy files and their product as tiles."""
    for name, matrix in (("a", a), ("b", b)):
        np.save(folder / f"{name}.npy", matrix)
    c = TileFolder(folder, "C", TileGrid(len(a), b.shape[1], 16), str(a.dtype))
    product = a @ b
    for row, column in c.grid.iterate_tiles():
        c.write((row, column), product[16 * row : 16 * row + 16, 16 * column : 16 * column + 16])
    return Factors(open_npy(folder / "a.npy", 16), open_npy(folder / "b.npy", 16), c)


@pytest.mark.parametrize("zeros", ["a row of A", "all of B"])
def test_rows_of_zeros_are_right_if_they_are_exact(tmp_path: Path, zeros: str) -> None:
    a, b = (np.random.default_rng(n).standard_normal((40, 40)) for n in (1, 2))
    if zeros == "all of B":
        b[:] = 0
    else:
        a[7] = 0
    factors, buffer = write_factors(tmp_path, a, b), np.empty(256)
    assert check_product(factors, buffer, lambda *_: None).passed
    tile = factors.c.read((0, 0), buffer).copy()
    tile[7, 3] = 1e-30
    factors.c.write((0, 0), tile)
    assert not check_product(factors, buffer, lambda *_: None).passed


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_factor_that_is_not_finite_is_named(tmp_path: Path) -> None:
    for wrong in (np.nan, np.inf):
        a, b = np.ones((40, 40)), np.ones((40, 40))
        b[20, 33] = wrong
        with pytest.raises(ValueError, match=rf"b\.npy is not finite: row 20, column 33 .* is {wrong}"):
            check_product(write_factors(tmp_path, a, b), np.empty(256), lambda *_: None)
        with pytest.raises(ValueError, match=r"a\.npy is not finite: row 20"):
            check_product(write_factors(tmp_path, b, a), np.empty(256), lambda *_: None)


def test_a_damaged_tile_stops_the_product_and_is_named(arrays: Any, tmp_path: Path) -> None:
    run = build_run(arrays, tmp_path, size=100, tile=32)
    path = run._factors.b.build_path((2, 1))
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(Exception, match=r"B_00002_00001\.tile is truncated"):
        run.step()


def test_work_is_counted_as_in_the_paper() -> None:
    work = TILED_PRODUCT.count_work("infer", {"size": 2**14}, "float32")
    assert work.flops_per_sample == 2 * 2**42 - 2**28
    assert work.bytes_per_sample == 3 * 4 * 2**28


def test_too_little_memory_is_refused_with_the_least(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"1000000 bytes of memory are too few: .* allow at least \d+"):
        build_run(NumpyArrays(), tmp_path, size=2048, tile=1024, memory_bytes=10**6)
    assert count_tiles_within(read_resident_bytes() + 2**30, 2**20, is_host=True) < 1024
    assert count_tiles_within(2**30, 2**20, is_host=False) == 1024


def test_a_disk_too_small_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"the tiles need \d+ bytes in .* the largest size that fits is \d+: "):
        build_run(NumpyArrays(), tmp_path, size=10**7, tile=10**3)
    assert not list(tmp_path.rglob("*.tile"))


def test_the_command_multiplies_verifies_and_keeps_to_the_memory_given(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    for name, shape in (("a", (7000, 100)), ("b", (100, 7000))):
        np.save(tmp_path / f"{name}.npy", random.standard_normal(shape, dtype=np.float32))
    own = ["--a", tmp_path / "a.npy", "--b", tmp_path / "b.npy"]
    # The product has 187 MiB, and the program with its libraries about 30 MiB.
    limit = 190 * 2**20
    ran = run_command(*own, "--tile", 512, "--memory", limit, "--folder", tmp_path / "t", "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["check_passed"]
    assert found["num_tiles_written"] == 196
    assert found["peak_memory_bytes"] <= limit


def test_a_killed_command_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "tiles"
    arguments = ["--size", "1500", "--tile", "100", "--folder", str(folder), "--json"]
    # The command runs at low priority: on a busy machine it would otherwise end before it is killed.
    running = subprocess.Popen(["nice", "-n", "5", *COMMAND, *arguments], stdout=subprocess.DEVNULL, env=ONE_THREAD)
    deadline = time.monotonic() + 100
    while len(list(folder.glob("C_*.tile"))) < 12 and time.monotonic() < deadline:
        time.sleep(0.002)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("C_*.tile")}
    assert 12 <= len(finished) < 225
    damaged = sorted(finished)[3]
    with open(damaged, "r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"\0\1\2")
    (folder / ".C_00009_00009.tile.1").write_bytes(b"half a tile")
    again = run_command(*arguments)
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert found["num_tiles_kept"] == len(finished) - 1
    assert found["num_tiles_written"] == 225 - len(finished) + 1
    assert found["check_passed"]
    assert f"{damaged.name} is damaged" in again.stderr
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items() if path != damaged)
    assert not list(folder.glob(".C_*"))


def test_a_full_disk_is_named_and_the_command_resumes_when_there_is_space(need: Need, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = f"--size 512 --tile 64 --folder {disk}/t --json"
    # Something else takes the last room as soon as the first tile of C is there.
    program = """
import sys
from pathlib import Path
from corewise.measured.workloads.kernels.tiled_product import __main__ as command, tile_files
disk, arguments = Path(sys.argv[1]), sys.argv[2].split()
write = tile_files.TileFolder.write
def write_and_fill(self, tile, array):
    write(self, tile, array)
    if self.name == "C" and not (disk / "other").exists():
        try:
            with open(disk / "other", "wb", buffering=0) as other:
                while True:
                    other.write(bytes(4096))
        except OSError:
            pass
tile_files.TileFolder.write = write_and_fill
print("code", command.main([*arguments, "--runtime", "numpy"]), flush=True)
left = sorted(p.name for p in (disk / "t").iterdir() if p.name.startswith((".", "C")))
print("left", left, flush=True)
(disk / "other").unlink()
tile_files.TileFolder.write = write
print("code", command.main([*arguments, "--runtime", "numpy"]), flush=True)
"""
    script = f'mount -t tmpfs -o size=5m none {disk} || exit 77; exec "$0" -c "$1" "$2" "$3"'
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, sys.executable, program, str(disk), arguments],
        capture_output=True,
        text=True,
        env=ONE_THREAD,
    )
    need(ran.returncode != 77 and "unshare" not in ran.stderr, "no tmpfs can be mounted here")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "code 1"
    assert "no space for the 20480 bytes of" in ran.stderr
    assert "No space left on device" in ran.stderr
    kept = lines[1].count("C_")
    assert kept >= 1
    assert "'." not in lines[1]
    assert json.loads(lines[2])["num_tiles_kept"] == kept
    assert json.loads(lines[2])["check_passed"]
    assert lines[3] == "code 0"


def test_a_folder_of_another_product_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tile", "16", "--folder", str(tmp_path), "--runtime", "numpy"]
    assert main(["--size", "40", *arguments]) == 0
    assert "the product is correct" in capsys.readouterr().out
    assert main(["--size", "48", *arguments]) == 2
    assert "holds tiles of another product" in capsys.readouterr().err


def test_a_study_in_a_folder_of_another_product_is_refused(tmp_path: Path) -> None:
    build_run(NumpyArrays(), tmp_path, size=40, tile=16, folder=str(tmp_path)).close()
    again = build_run(NumpyArrays(), tmp_path, size=40, tile=16, folder=str(tmp_path))
    assert again.check().passed
    again.close()
    with pytest.raises(Infeasible, match=r'holds tiles of another product .*\[40, 40, 40\].*"seed": 2'):
        build_run(NumpyArrays(), tmp_path, size=48, tile=16, folder=str(tmp_path))


def test_a_second_command_in_the_same_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--size", "40", "--tile", "16", "--folder", str(tmp_path / "tiles-2"), "--runtime", "numpy"]
    running = build_run(NumpyArrays(), tmp_path, size=40, tile=16, folder=str(tmp_path))
    unfinished = tmp_path / "tiles-2" / ".C_00000_00000.tile.7"
    unfinished.write_bytes(b"half a tile")
    assert main([*arguments, "--seed", "2"]) == 2
    assert re.search(r"process \d+ on .* is using .*; wait for it", capsys.readouterr().err)
    assert unfinished.exists()
    running.close()
    assert main([*arguments, "--seed", "2"]) == 0
    assert not unfinished.exists()


def test_overlap_follows_from_the_time_spent_waiting() -> None:
    spent = {"multiply_s": 2.0, "read_s": 4.0, "write_s": 1.0, "wait_s": 0.5, "last_writes_s": 0.5}
    report = MultiplicationReport(wall_s=10.0, num_tiles_read=1, num_tiles_written=1, **spent)
    assert report.to_facts()["overlap"] == 0.8


def test_a_block_is_a_minute_of_work_and_the_command_says_what_a_kill_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(multiply, "_measure_tile_s", lambda *_: 25.0)
    arguments = ["--size", "128", "--tile", "16", "--memory", "64G", "--runtime", "numpy", "--folder"]
    assert main([*arguments, str(tmp_path / "a")]) == 0
    assert "if killed, up to 1e+02 s of work are lost: 2x2 tiles" in capsys.readouterr().err
    monkeypatch.setattr(multiply, "_measure_tile_s", lambda *_: 0.001)
    assert main([*arguments, str(tmp_path / "b"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["block_of_sums"] == [8, 8]
    assert found["kill_costs_s"] == pytest.approx(0.064)


def test_threads_are_set_before_numpy_is_loaded(tmp_path: Path) -> None:
    program = """
import os, sys
from corewise.measured.workloads.kernels.tiled_product.__main__ import main
assert "numpy" not in sys.modules
assert main(sys.argv[1:]) == 0
from corewise.measured.pinning import read_thread_masks
masks = read_thread_masks().values()
print(sum(mask.name != "cw_io" for mask in masks))  # those that read and write may not be gone yet
"""
    arguments = ["--size", "64", "--folder", str(tmp_path), "--runtime", "numpy", "--json", "--threads"]
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    for num_threads in (1, 2):
        ran = subprocess.run(
            [sys.executable, "-c", program, *arguments, str(num_threads)], capture_output=True, text=True, env=clean
        )
        assert ran.returncode == 0, ran.stderr
        assert int(ran.stdout.splitlines()[-1]) <= num_threads


def test_torch_takes_the_threads_it_is_given(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        for num_threads in (2, 1):
            arguments = ["--size", "64", "--folder", str(tmp_path), "--threads", str(num_threads), "--json"]
            assert main(arguments) == 0
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("module", ["tiled_product.__main__", "cg.solve"])
def test_without_numpy_the_commands_say_so(module: str, tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["numpy"] = None
from corewise.measured.workloads.kernels.{module} import main
sys.exit(main(sys.argv[1:]))
"""
    arguments = ["--size", "8"] + (["--folder", str(tmp_path)] if module != "cg.solve" else [])
    ran = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "numpy is not installed for this Python" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_own_matrices_of_any_shape_are_multiplied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(1)
    a, b = random.standard_normal((70, 45)), random.standard_normal((45, 101))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    arguments = ["--a", str(tmp_path / "a.npy"), "--tile", "16", "--folder", str(tmp_path / "t")]
    assert main([*arguments, "--b", str(tmp_path / "b.npy"), "--runtime", "numpy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["check_passed"]
    path = next((tmp_path / "t").glob("C_*"))
    problem = json.loads(path.read_bytes()[:4096])["problem"]
    c = read_matrix(TileFolder(tmp_path / "t", "C", TileGrid(70, 101, 16), "float64", problem))
    assert np.allclose(c, a @ b)
    assert main([*arguments, "--b", str(tmp_path / "a.npy"), "--runtime", "numpy"]) == 2
    assert "cannot be multiplied" in capsys.readouterr().err


def test_without_a_gpu_the_command_says_so(need: Need, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    arguments = ["--folder", str(tmp_path), "--size", "64", "--threads", "1", "--device", "cuda", "--runtime"]
    for runtime, reason in (
        ("torch", "torch sees no CUDA device"),
        ("jax", "jax sees no CUDA device"),
        ("tensorflow", "tensorflow sees no CUDA device"),
    ):
        need_framework(need, runtime)
        assert main([*arguments, runtime]) == 2
        assert f"device cuda: {reason}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--size", "64", "--memory", "lots"], "--memory takes bytes"),
        (["--size", "64", "--memory", "infG"], "--memory takes bytes"),
        (["--size", "64", "--memory", "1K"], "too few"),
        (["--size", "64", "--seed", "-1"], "argument --seed: must be a whole number of at least 0"),
        (["--size", "64", "--threads", "0"], "argument --threads: must be a whole number of at least 1"),
        (["--size", "64", "--threads", "-1"], "argument --threads: must be a whole number of at least 1"),
        (["--size", "0"], "argument --size: must be a whole number of at least 1"),
        (["--a", "x.npy", "--b", "y.npy", "--size", "77"], "--size is for random matrices"),
        (["--a", "x.npy"], "must be used together"),
        (["--a", "x.npy", "--b", "y.npy"], "No such file.*x.npy"),
        (["--a", __file__, "--b", __file__], "is not a .npy file"),
        ([], "use --size"),
        (["--size", "64", "--device", "cuda", "--runtime", "numpy"], "numpy runs on the cpu only"),
    ],
)
def test_mistakes_are_reported_with_a_remedy(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main(["--folder", str(tmp_path), "--runtime", "numpy", *arguments])
    except SystemExit as left:
        code = left.code
    assert code == 2
    assert re.search(reason, capsys.readouterr().err)


def test_tiles_that_exceed_memory_are_refused_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(NumpyArrays, "free_bytes", lambda self: 2**16)
    arguments = ["--size", "1024", "--tile", "256", "--runtime", "numpy", "--folder", str(tmp_path / "t")]
    assert main(arguments) == 2
    output = re.search(
        r"tiles in memory need 1048576 bytes, 65536 are free; use --memory (\d+) or less, or smaller",
        capsys.readouterr().err,
    )
    assert output is not None
    assert int(output.group(1)) > read_resident_bytes() / 2
    assert not list(tmp_path.rglob("*.tile"))


def test_a_refused_size_leaves_the_folder_to_one_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tile", "16", "--folder", str(tmp_path / "t"), "--runtime", "numpy"]
    assert main(["--size", str(10**8), *arguments]) == 2
    assert "the largest size that fits is" in capsys.readouterr().err
    assert main(["--size", "40", *arguments]) == 0
    assert main(["--size", "48", *arguments]) == 2
    assert "holds tiles of another product" in capsys.readouterr().err


def test_an_unusable_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    for folder, reason in ((taken, "File exists"), (taken / "t", "Not a directory"), ("/proc/t", "No such")):
        assert main(["--size", "40", "--runtime", "numpy", "--folder", str(folder)]) == 2
        output = capsys.readouterr().err
        assert re.search(f"cannot write tiles to {folder}: {reason}.*; name another folder", output)
    with pytest.raises(Infeasible, match="cannot write tiles"):
        build_run(NumpyArrays(), tmp_path, size=40, tile=16, folder=str(taken))


def test_a_damaged_factor_is_named_and_made_again_once_it_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--size", "40", "--tile", "16", "--folder", str(tmp_path), "--runtime", "numpy"]
    assert main(arguments) == 0
    damaged = tmp_path / "A_00000_00001.tile"
    before = damaged.read_bytes()
    damaged.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    assert main(arguments) == 1
    assert f"{damaged} is damaged" in (output := capsys.readouterr().err)
    assert "remove it and run the same command again to recreate it" in output
    damaged.unlink()
    assert main(arguments) == 0
    assert damaged.read_bytes() == before
