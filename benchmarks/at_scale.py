"""Measure time and peak memory of the verbs that read a store, on a store with very many records.

The script makes two stores under --dir, `scale-store-a` and `scale-store-b`, unless they exist. The second one
holds the same points with another version of the framework; one trial in twenty is 10 % slower. Each command
runs in fresh processes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import describe_machine, write_figures
from scale_stores import NUM_RUNS, StoreRecipe, make_store

SQL = "select study, count(*), median(metrics.step_s) from records where status = 'ok' group by study"
QUERY = """
import sys
from corewise.store.sql_query import query
from corewise.store.store import Store
print(query(Store.open(sys.argv[1], create=False), sys.argv[2]).rows)
"""
LIMIT_S, LIMIT_BYTES = 20.0, 1e9


@dataclass(frozen=True)
class Cost:
    """What one command cost.

    `peak_rss_bytes` is the peak of its largest process, as the kernel counts it. `peak_pss_bytes` is the peak of
    all its processes together, polled ten times a second.
    """

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    peak_pss_bytes: int
    output_bytes: int
    exit_code: int


class MemoryWatch:
    """Polls the memory of a process and its children until it is stopped."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll_memory)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _poll_memory(self) -> None:
        while not self._ended.wait(0.1):
            self.peak_bytes = max(self.peak_bytes, sum(map(read_pss_bytes, list_process_tree(self._pid))))


def list_process_tree(pid: int) -> list[int]:
    """List a process and all its descendants."""
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return [pid]
    return [pid, *(each for text in texts for child in text.split() for each in list_process_tree(int(child)))]


def read_pss_bytes(pid: int) -> int:
    """Read the proportional set size of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def measure_command(command: list[str], out: Path | None) -> Cost:
    """Run a command once, discard its output, and measure it."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watch = MemoryWatch(process.pid)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    watch.stop()
    process.returncode = os.waitstatus_to_exitcode(status)
    size = out.stat().st_size if out is not None and out.exists() else 0
    cpu_s = used.ru_utime + used.ru_stime
    return Cost(wall_s, cpu_s, used.ru_maxrss * 1024, watch.peak_bytes, size, process.returncode)


def list_commands(a: Path, b: Path, folder: Path) -> dict[str, tuple[list[str], Path | None]]:
    """List each command with the file that it writes."""
    corewise = [sys.executable, "-m", "corewise"]
    found: dict[str, tuple[list[str], Path | None]] = {}
    for fmt in ("json", "csv", "parquet"):
        out = folder / f"export.{fmt}"
        found[f"export {fmt}"] = ([*corewise, "export", "--store", str(a), "-o", str(out)], out)
    found["query"] = ([sys.executable, "-c", QUERY, str(a), SQL], None)
    found["status"] = ([*corewise, "status", "--store", str(a)], None)
    found["show"] = ([*corewise, "show", "--store", str(a)], None)
    found["compare"] = ([*corewise, "compare", str(a), str(b)], None)
    page = folder / "report.html"
    found["report"] = ([*corewise, "report", "--store", str(a), "-o", str(page)], page)
    return {name: each for name, each in found.items() if name == "query" or _is_verb(name.split()[0])}


def _is_verb(name: str) -> bool:
    command = [sys.executable, "-m", "corewise", name, "--help"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def make_stores(folder: Path, num_records: int, num_samples: int) -> tuple[Path, Path]:
    """Return the two stores; make those that are missing."""
    a, b = folder / "scale-store-a", folder / "scale-store-b"
    makings = {
        a: StoreRecipe(num_records, num_samples, seed=1),
        b: StoreRecipe(num_records, num_samples, seed=2, torch_version="2.12.0", slowed_share=0.05, slowed_by=0.10),
    }
    for path, making in makings.items():
        if not path.exists():
            print(f"writing {path} ...", flush=True)
            make_store(path, making)
    return a, b


def show(costs: dict[str, list[Cost]]) -> None:
    """Print the best run of each command, and whether it is within its limits."""
    print(f"{'':16} {'wall s':>8} {'CPU s':>8} {'peak MB':>9} {'of all MB':>10} {'output MB':>10}  runs")
    for name, ones in costs.items():
        best = min(ones, key=lambda cost: cost.wall_s)
        peak_bytes = max(best.peak_rss_bytes, best.peak_pss_bytes)
        is_within = best.wall_s < LIMIT_S and peak_bytes < LIMIT_BYTES
        remark = f"exit code {best.exit_code}" if best.exit_code > 1 else "" if is_within else "over the limit"
        megabytes = (best.peak_rss_bytes / 1e6, best.peak_pss_bytes / 1e6, best.output_bytes / 1e6)
        print(
            f"{name:16} {best.wall_s:8.1f} {best.cpu_s:8.1f} {megabytes[0]:9.0f} {megabytes[1]:10.0f} "
            f"{megabytes[2]:10.1f}  {len(ones)}  {remark}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=100, help=f"of each record, over {NUM_RUNS} runs")
    parser.add_argument("--dir", type=Path, help="keep the stores here; by default they are temporary")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these, e.g. 'export json' compare")
    parser.add_argument("--make-only", action="store_true", help="make the stores and measure nothing")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.samples < NUM_RUNS:
        parser.error(f"--samples must be at least {NUM_RUNS}")
    with tempfile.TemporaryDirectory() as temporary:
        a, b = make_stores(args.dir or Path(temporary), args.records, args.samples)
        if args.make_only:
            return
        chosen = list_commands(a, b, Path(temporary))
        costs: dict[str, list[Cost]] = {}
        for name, (command, out) in chosen.items():
            if not args.only or name in args.only:
                costs[name] = [measure_command(command, out) for _ in range(args.repeats)]
        print(describe_machine())
        print(f"{args.records} records of {args.samples} samples, best of {args.repeats}")
        show(costs)
        raw = {name: [asdict(cost) for cost in ones] for name, ones in costs.items()}
        write_figures(args.out, num_records=args.records, num_samples=args.samples, commands=raw)


if __name__ == "__main__":
    main()
