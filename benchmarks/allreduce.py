"""Allreduce among the processes of one node: gloo, shared memory and Open MPI, interleaved in one run.

Every rank has a core. Every sum is checked on fresh random data against a float64 reference. The bound is the time to
read and write every rank's buffer once at the triad bandwidth that all ranks reach together in the same run. With more
ranks than cores the figures show only that nothing breaks.

    python benchmarks/allreduce.py --ranks 2 4 16 --json OUT

It runs from a checkout with torch and numpy; the column of MPI needs mpi4py and mpirun. The library is built with
g++ on the first run. Where there is no compiler, build it on a machine of the same architecture and carry the folder:

    COREWISE_NATIVE_CACHE=FOLDER PYTHONPATH=src python -m corewise.accelerate.collectives
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

SOURCES = str(Path(__file__).resolve().parent.parent / "src")
SIZES_MIB = (0.0625, 1.0, 4.0, 25.0, 100.0)
TRIAD_BYTES = 48 << 20
# Elements of the random block that fills a buffer, and how many blocks are checked at a time.
BLOCK = 1 << 14
CHECKED_BLOCKS = 32
# No part of a run takes longer than this, even with many ranks on few cores.
MAX_RUN_S = 300


def pin(rank):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})


def choose_rounds(mib):
    return 30 if mib <= 1 else 15 if mib <= 4 else 6


def measure(call, buffer, fresh, barrier):
    """Return the seconds of one call on the data of this round."""
    buffer[:] = fresh
    barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def check(method, result, total, num_ranks):
    """Compare a result with the sum of the blocks of all ranks, piece by piece, so that it stays in the cache."""
    import numpy as np

    worst, largest = 0.0, 0.0
    piece = CHECKED_BLOCKS * BLOCK
    for start in range(0, len(result), piece):
        part = result[start : start + piece]
        expected = tile(total, len(part), start // BLOCK)
        # A NaN must not be lost in a maximum of Python.
        worst = float(np.maximum(worst, np.max(np.abs(part - expected))))
        largest = max(largest, float(np.max(np.abs(expected))))
    if not worst <= 1e-6 * num_ranks * max(1.0, largest):
        raise SystemExit(f"{method}: wrong sum, error {worst}")


def tile(block, count, first=0):
    """Fill a buffer with the block, times a factor that differs between neighbouring copies."""
    import numpy as np

    factors = (1 + (first + np.arange(-(-count // BLOCK))) % 7).astype(block.dtype)
    return (factors[:, None] * block).reshape(-1)[:count]


def draw(rank, seed):
    import numpy as np

    return np.random.default_rng([seed, rank]).standard_normal(BLOCK, dtype=np.float32)


def run_sizes(rank, num_ranks, sizes, methods, barrier):
    """Time every method on every size; return milliseconds per round by size and method."""
    import numpy as np

    times = {}
    for mib in sizes:
        count = int(mib * 2**20) // 4
        buffer = np.empty(count, dtype=np.float32)
        calls = {name: build(buffer) for name, build in methods.items()}
        for number in range(choose_rounds(mib) + 2):
            seed = number * 1000 + int(mib * 16)
            fresh = tile(draw(rank, seed), count)
            total = np.sum([draw(other, seed).astype(np.float64) for other in range(num_ranks)], axis=0)
            for name, call in calls.items():
                elapsed = measure(call, buffer, fresh, barrier)
                check(name, buffer, total, num_ranks)
                if number >= 2:
                    times.setdefault(str(mib), {}).setdefault(name, []).append(elapsed * 1e3)
    return times


def measure_triad(library, barrier):
    """Return this rank's seconds of each sweep, while all ranks stream together."""
    import numpy as np

    count = TRIAD_BYTES // 8
    a, b, c = (np.ones(count) for _ in range(3))
    seconds = []
    for _ in range(8):
        barrier()
        start = time.perf_counter()
        library.corewise_triad(a.ctypes.data, b.ctypes.data, c.ctypes.data, count)
        seconds.append(time.perf_counter() - start)
    return seconds


def compute_triad(gathered):
    """Return the bytes per second of all ranks together in the best sweep, until the slowest rank has finished it."""
    sweeps = zip(*(seconds for _, seconds in gathered), strict=True)
    return len(gathered) * 3 * TRIAD_BYTES / min(max(sweep) for sweep in sweeps)


def run_torch_rank(rank, num_ranks, sizes, chunk_kib, store, out):
    sys.path.insert(0, SOURCES)
    pin(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    from corewise.accelerate.collectives.native_library import load_library
    from corewise.accelerate.collectives.shared_allreduce import SharedAllreduce

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, num_ranks), rank=rank, world_size=num_ranks)
    reducer = SharedAllreduce(timeout_s=120)
    chunks = {kib: SharedAllreduce(timeout_s=120, chunk_bytes=kib << 10) for kib in chunk_kib}
    flag = torch.zeros(1)

    def wait_for_all():
        # gloo's own barrier leaves ranks skewed by its slow messages; ours ends them within microseconds.
        dist.barrier()
        reducer.allreduce(flag.zero_())

    methods = {
        "gloo": lambda buffer: partial(dist.all_reduce, torch.from_numpy(buffer)),
        "shared": lambda buffer: partial(reducer.allreduce, torch.from_numpy(buffer)),
    }
    for kib, other in chunks.items():
        methods[f"shared, {kib} KiB"] = lambda buffer, other=other: partial(other.allreduce, torch.from_numpy(buffer))
    times = run_sizes(rank, num_ranks, sizes, methods, wait_for_all)
    triad = measure_triad(load_library(), wait_for_all)
    gathered = [None] * num_ranks
    dist.all_gather_object(gathered, (times, triad))
    if rank == 0:
        Path(out).write_text(json.dumps(gathered))
    dist.barrier()
    dist.destroy_process_group()


def run_mpi_rank(sizes, out):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    pin(world.Get_rank())
    methods = {"mpi": lambda buffer: lambda: world.Allreduce(MPI.IN_PLACE, buffer)}
    times = run_sizes(world.Get_rank(), world.Get_size(), sizes, methods, world.Barrier)
    gathered = world.gather((times, []))
    if world.Get_rank() == 0:
        Path(out).write_text(json.dumps(gathered))


def start_torch(num_ranks, sizes, chunk_kib, folder):
    out = folder / "torch.json"
    base = [sys.executable, __file__, "--sizes", *map(str, sizes), "--out", str(out), "--store", str(folder / "store")]
    base += ["--chunk-kib", *map(str, chunk_kib)]
    ranks = [subprocess.Popen([*base, "--torch-rank", str(rank), str(num_ranks)]) for rank in range(num_ranks)]
    try:
        if any(rank.wait(MAX_RUN_S) for rank in ranks):
            raise SystemExit("a rank failed; its message is above")
    finally:
        for rank in ranks:
            rank.kill()
    (folder / "store").unlink(missing_ok=True)
    return json.loads(out.read_text())


def explain_missing_mpi():
    if shutil.which("mpirun") is None:
        return "mpirun is not installed"
    if subprocess.run([sys.executable, "-c", "import mpi4py.MPI"], capture_output=True).returncode:
        return "mpi4py cannot be imported"
    return ""


def start_mpi(num_ranks, sizes, folder):
    out = folder / "mpi.json"
    # mpirun of another MPI ignores these variables.
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-n", str(num_ranks), sys.executable, __file__]
    subprocess.run(
        [*command, "--mpi-rank", "--sizes", *map(str, sizes), "--out", str(out)],
        env=environment,
        check=True,
        timeout=MAX_RUN_S,
    )
    return json.loads(out.read_text())


def merge(results, gathered):
    """Add the slowest rank's time of every round."""
    for mib, methods in gathered[0][0].items():
        for name in methods:
            rounds = zip(*(times[mib][name] for times, _ in gathered), strict=True)
            results.setdefault(mib, {}).setdefault(name, []).extend(max(values) for values in rounds)


def compare(num_ranks, sizes, chunk_kib, repeats, with_mpi):
    """Alternate starts of torch's ranks and of MPI's; return the rows of the table."""
    results, triads = {}, []
    with tempfile.TemporaryDirectory() as name:
        for _ in range(repeats):
            gathered = start_torch(num_ranks, sizes, chunk_kib, Path(name))
            merge(results, gathered)
            triads.append(compute_triad(gathered))
            if with_mpi:
                merge(results, start_mpi(num_ranks, sizes, Path(name)))
    triad = max(triads)
    rows = []
    for mib in sizes:
        milliseconds = {method: statistics.median(values) for method, values in results[str(mib)].items()}
        bound = 2 * num_ranks * mib * 2**20 / triad * 1e3
        rows.append(
            {
                "ranks": num_ranks,
                "mib": mib,
                "ms": milliseconds,
                "fastest_ms": {method: min(values) for method, values in results[str(mib)].items()},
                "over_gloo": milliseconds["gloo"] / milliseconds["shared"],
                "time_over_mpi": milliseconds["shared"] / milliseconds["mpi"] if with_mpi else None,
                "triad_gb_per_s": triad / 1e9,
                "fraction_of_bound": bound / milliseconds["shared"],
            }
        )
    return rows


def print_header():
    print(
        f"{'ranks':>5} {'MiB':>7} {'gloo ms':>9} {'MPI ms':>9} {'shared ms':>9} {'x gloo':>7} {'/ MPI':>6} {'bound':>6}"
    )


def print_row(row):
    ms = row["ms"]
    mpi = f"{ms['mpi']:9.3f}" if "mpi" in ms else f"{'-':>9}"
    ratio = f"{row['time_over_mpi']:6.2f}" if "mpi" in ms else f"{'-':>6}"
    others = "".join(f"  {name.split(', ')[1]}: {value:.3f} ms" for name, value in ms.items() if "KiB" in name)
    print(
        f"{row['ranks']:5} {row['mib']:7g} {ms['gloo']:9.3f} {mpi} {ms['shared']:9.3f} "
        f"{row['over_gloo']:7.1f} {ratio} {row['fraction_of_bound']:6.2f}{others}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES_MIB, help="MiB")
    parser.add_argument("--chunk-kib", type=int, nargs="*", default=[], help="also measure chunks of these sizes")
    parser.add_argument("--repeats", type=int, default=2, help="alternating starts of torch's and MPI's ranks")
    parser.add_argument("--json")
    parser.add_argument("--torch-rank", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--mpi-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch_rank:
        return run_torch_rank(*options.torch_rank, options.sizes, options.chunk_kib, options.store, options.out)
    if options.mpi_rank:
        return run_mpi_rank(options.sizes, options.out)
    missing = explain_missing_mpi()
    if missing:
        print(f"no column for MPI: {missing}")
    rows = []
    print_header()
    for num_ranks in options.ranks:
        if num_ranks > len(os.sched_getaffinity(0)):
            print(f"{num_ranks} ranks share {len(os.sched_getaffinity(0))} cores")
        for row in compare(num_ranks, options.sizes, options.chunk_kib, options.repeats, not missing):
            rows.append(row)
            print_row(row)
        print(f"triad of {num_ranks} ranks: {rows[-1]['triad_gb_per_s']:.1f} GB/s")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))
    return None


if __name__ == "__main__":
    main()
