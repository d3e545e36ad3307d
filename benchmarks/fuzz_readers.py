"""Fuzz the readers of study files, tuned files, store lines and rank results.

Cases are mutations of the corpus in tests/fuzz/corpus, which holds seeds and every input that ever failed. They
depend only on --seed. If atheris is installed, it runs a share of the cases first, guided by coverage, and the
inputs that reached new code become seeds. A reader may raise only what it declares, and no case may take longer
than one second per 100 kB of its input, in CPU time.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz_targets import ReaderTarget

# Seconds of CPU time that a case may take for each of these bytes, and for fewer.
LIMIT_S, LIMIT_BYTES = 1.0, 100_000
# The share of cases that atheris runs.
GUIDED_SHARE = 0.1
MAX_GUIDED_SEEDS = 300
MAX_SAVED = 20
_SAVE_EVERY = 500


@dataclass
class Tally:
    """What the cases of a reader gave; failures are counted by the place that raised."""

    reader: str
    num_cases: int = 0
    num_uncaught: int = 0
    num_slow: int = 0
    slowest_s_per_100kb: float = 0.0
    seconds: float = 0.0
    num_guided: int = 0
    num_guided_seeds: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def add(self, other: dict[str, Any]) -> None:
        """Add the tally of another process."""
        for name in ("num_cases", "num_uncaught", "num_slow", "seconds", "num_guided"):
            setattr(self, name, getattr(self, name) + other[name])
        self.slowest_s_per_100kb = max(self.slowest_s_per_100kb, other["slowest_s_per_100kb"])
        for place, num in other["failures"].items():
            self.failures[place] = self.failures.get(place, 0) + num


class CaseRunner:
    """Runs cases of one reader, and saves the first inputs that fail at each place."""

    def __init__(self, target: "ReaderTarget", failures: Path | None) -> None:
        self.target, self.folder = target, failures
        self.tally = Tally(target.name)

    def run(self, data: bytes) -> None:
        """Run one case; count it and save its input if it fails or is slow."""
        began = time.process_time()
        try:
            self.target.check(data)
        except Exception as error:
            self.tally.num_uncaught += 1
            frame = traceback.extract_tb(error.__traceback__)[-1]
            self._note(f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno} {frame.name}", data)
        scaled_s = (time.process_time() - began) / max(1.0, len(data) / LIMIT_BYTES)
        self.tally.num_cases += 1
        self.tally.slowest_s_per_100kb = max(self.tally.slowest_s_per_100kb, scaled_s)
        if scaled_s > LIMIT_S:
            self.tally.num_slow += 1
            self._note("slow", data)

    def _note(self, place: str, data: bytes) -> None:
        num = self.tally.failures[place] = self.tally.failures.get(place, 0) + 1
        if self.folder is not None and num <= MAX_SAVED:
            folder = self.folder / self.target.name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{place.split()[0].lower()}-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)


def run_seeded(runner: CaseRunner, seeds: Sequence[bytes], num_cases: int, seed: int) -> None:
    """Run the seeds, then mutations of them."""
    began = time.monotonic()
    for data in seeds[:num_cases]:
        runner.run(data)
    dice = Random(f"{runner.target.name} {seed}")
    while runner.tally.num_cases < num_cases:
        runner.run(runner.target.make_case(dice, dice.choice(seeds), seeds))
    runner.tally.seconds += time.monotonic() - began


def run_guided(name: str, args: argparse.Namespace) -> None:
    """Run cases under atheris, which ends the process; called in a process of its own."""
    import atheris

    with atheris.instrument_imports(include=["corewise"]):
        from fuzz_targets import TARGETS

    target, tally_file, began = TARGETS[name], args.guided_tally, time.monotonic()
    runner, seeds = CaseRunner(target, args.failures), target.read_seeds()

    def run_one(data: bytes) -> None:
        runner.run(data)
        tally = runner.tally
        is_last = tally.num_cases >= args.cases
        if is_last or tally.num_cases % _SAVE_EVERY == 0:
            tally.seconds, tally.num_guided = time.monotonic() - began, tally.num_cases
            tally_file.write_text(json.dumps(asdict(tally)))
        if is_last:
            # A regular end of atheris with its own mutations waits forever.
            os._exit(0)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        dice = Random(seed)
        return target.make_case(dice, data or dice.choice(seeds), seeds)[:max_size]

    found = args.guided_tally.with_name("found")
    found.mkdir()
    options = [f"-seed={args.seed + 1}", "-max_len=100000", "-timeout=600", "-rss_limit_mb=4000"]
    options.append(f"-artifact_prefix={found.parent}/")
    folders = [str(found), str(Path(sys.modules["fuzz_targets"].CORPUS) / name)]
    atheris.Setup(["fuzz", *options, *folders], run_one, custom_mutator=mutate)
    atheris.Fuzz()


def start_guided(name: str, num_cases: int, args: argparse.Namespace) -> tuple[dict[str, Any] | None, list[bytes]]:
    """Run the guided cases in a process; return its tally and the inputs that reached new code."""
    with tempfile.TemporaryDirectory() as folder:
        tally = Path(folder) / "tally.json"
        command = [sys.executable, __file__, "--readers", name, "--cases", str(num_cases), "--seed", str(args.seed)]
        command += ["--guided-tally", str(tally), *(["--failures", str(args.failures)] if args.failures else [])]
        done = subprocess.run(command, capture_output=True, check=False)
        if not tally.exists():
            print(f"atheris failed for {name}: {done.stderr.decode(errors='replace')[-500:]}", file=sys.stderr)
            return None, []
        found = sorted((Path(folder) / "found").iterdir())[:MAX_GUIDED_SEEDS]
        return json.loads(tally.read_text()), [path.read_bytes() for path in found]


def fuzz_reader(target: "ReaderTarget", args: argparse.Namespace, has_atheris: bool) -> Tally:
    """Run all cases of one reader."""
    num_cases = args.cases or target.num_cases
    runner, seeds = CaseRunner(target, args.failures), target.read_seeds()
    guided: dict[str, Any] | None = None
    found: list[bytes] = []
    if has_atheris:
        guided, found = start_guided(target.name, max(1, round(GUIDED_SHARE * num_cases)), args)
        seeds += found
    run_seeded(runner, seeds, num_cases - (guided["num_cases"] if guided else 0), args.seed)
    if guided is not None:
        runner.tally.add(guided)
        runner.tally.num_guided_seeds = len(found)
    return runner.tally


def show(tallies: Sequence[Tally], guidance: str) -> None:
    """Print the table and the failures."""
    print(guidance)
    print(f"{'reader':12} {'cases':>10} {'uncaught':>9} {'slow':>5} {'slowest s per 100 kB':>21} {'seconds':>8}")
    for tally in tallies:
        print(
            f"{tally.reader:12} {tally.num_cases:10,} {tally.num_uncaught:9} {tally.num_slow:5} "
            f"{tally.slowest_s_per_100kb:21.3f} {tally.seconds:8.0f}"
        )
    for tally in tallies:
        for place, num in sorted(tally.failures.items(), key=lambda pair: -pair[1]):
            print(f"{tally.reader}: {num} × {place}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", nargs="+", metavar="NAME", help="only these readers")
    parser.add_argument("--cases", type=int, help="cases of each reader; default: 100,000 of YAML, 1,000,000 of lines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--failures", type=Path, metavar="DIR", help="save failing inputs here")
    parser.add_argument("--no-atheris", action="store_true", help="do not use atheris even if it is installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--guided-tally", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.guided_tally is not None:
        run_guided(args.readers[0], args)
        return 0
    from fuzz_targets import TARGETS
    from measuring import write_figures

    has_atheris = not args.no_atheris and importlib.util.find_spec("atheris") is not None
    tallies = [fuzz_reader(TARGETS[name], args, has_atheris) for name in args.readers or TARGETS]
    guidance = "without atheris: no coverage guidance"
    if has_atheris:
        shares = [f"{each.reader} {each.num_guided:,} ({each.num_guided_seeds} new seeds)" for each in tallies]
        guidance = f"with atheris {version('atheris')}; cases guided by coverage: {', '.join(shares)}"
    show(tallies, guidance)
    write_figures(args.json, seed=args.seed, guidance=guidance, readers=[asdict(tally) for tally in tallies])
    return int(any(tally.num_uncaught or tally.num_slow for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
