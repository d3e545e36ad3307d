"""Tune models of `transformers`, apply the printed lines to a plain script, and measure whether the gain arrives.

For each case, `corewise tune FILE.py:FACTORY` searches within its budget. Then two scripts run in turns: a plain
one under `python`, and one with the printed lines under `corewise launch --config`. Needs `pip install transformers`.

    python benchmarks/tune_own_models.py bert:infer:8:120s bert:infer:8:120s:lower-precision convnext:train:8:150s

With --co-runners, that many busy loops share the CPUs during the search and the scripts. A recommendation that is
slower than the default by more than 3 % in the scripts is an error:

    python benchmarks/tune_own_models.py bert:infer:1:60s resnet:infer:1:60s --co-runners 2 --repeat 10
"""

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measuring import WORKLOADS, write_figures

from corewise.study.durations import parse_duration_s

MODELS = WORKLOADS / "transformers_models.py"
# A recommendation may be slower than the default by this share.
TOLERANCE = 0.03
LIMIT_S = 900
SCRIPT = """\
import contextlib, os, sys, time
import torch
sys.path.insert(0, {folder!r})
from transformers_models import {factory}

torch.manual_seed(1)
model, (batch,) = {factory}(int(sys.argv[1]), {mode!r})
model.{switch}()
num_ranks = int(os.environ.get("WORLD_SIZE", 1))
{lines}
if {training} and num_ranks > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9) if {training} else None


def step():
    if optimizer is None:
        with torch.inference_mode(), {context}:
            model(batch)
        return
    optimizer.zero_grad()
    with {context}:
        loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()


warm_up_end = time.monotonic() + {warm_up_s}
for _ in range(3):
    step()
while time.monotonic() < warm_up_end:
    step()
times = []
while sum(times) < {seconds} or len(times) < 5:
    began = time.monotonic()
    step()
    times.append(time.monotonic() - began)
print(f"rate {{len(batch) * len(times) / sum(times):.6g}} samples/s", flush=True)
"""


@dataclass(frozen=True)
class Case:
    """A model, how it runs, and the budget of its search: bert:infer:8:120s or bert:infer:8:120s:lower-precision."""

    factory: str
    mode: str
    batch: int
    budget: str
    allow: str = ""

    @classmethod
    def parse(cls, text: str) -> "Case":
        factory, mode, batch, budget, *allow = text.split(":")
        parse_duration_s(budget, "the budget")
        return cls(factory, mode, int(batch), budget, *allow)


class ScriptError(Exception):
    """Raised with the output if a script fails."""


@dataclass(frozen=True)
class Outcome:
    """What a search claimed, and what the scripts gave; ratios are tuned over default."""

    case: str
    verdict: str
    setting: str
    seconds: float
    overrun: float
    claimed: float | None
    measured: float | None
    default_rates: Sequence[float]
    tuned_rates: Sequence[float]
    problem: str = ""

    @property
    def is_slower(self) -> bool:
        return self.measured is not None and self.measured < 1 - TOLERANCE


def run_case(case: Case, name: str, rounds: int, seconds: float) -> Outcome:
    """Search, then run both scripts in turns."""
    with tempfile.TemporaryDirectory(prefix="corewise-own-") as folder:
        place = Path(folder)
        began = time.monotonic()
        done = subprocess.run(_build_search(case, place), capture_output=True, text=True, timeout=LIMIT_S, cwd=place)
        elapsed_s = time.monotonic() - began
        overrun = elapsed_s / parse_duration_s(case.budget, "the budget") - 1
        if done.returncode or not done.stdout.strip():
            problem = (done.stderr.strip().splitlines() or ["no output"])[-1]
            return Outcome(name, "failed", "", elapsed_s, overrun, None, None, (), (), f"{done.returncode}: {problem}")
        answer = json.loads(done.stdout)
        best = answer["best"]["words"]
        # An answer that was not confirmed in time writes no settings.
        if best == answer["default"]["words"] or not (place / "tuned.yaml").exists():
            return Outcome(name, answer["verdict"], best, elapsed_s, overrun, None, None, (), ())
        try:
            rates = _run_scripts(case, answer, place, rounds, seconds)
        except ScriptError as problem:
            return Outcome(
                name, answer["verdict"], best, elapsed_s, overrun, answer["speedup"], None, (), (), str(problem)
            )
        default, tuned = (rates[each] for each in ("default", "tuned"))
        ratio = statistics.median(tuned) / statistics.median(default)
        return Outcome(name, answer["verdict"], best, elapsed_s, overrun, answer["speedup"], ratio, default, tuned)


def _build_search(case: Case, place: Path) -> list[str]:
    command = [sys.executable, "-m", "corewise", "tune", f"{MODELS}:{case.factory}", "--mode", case.mode]
    command += ["--batch", str(case.batch), "--budget", case.budget, "--json", "--quiet"]
    command += ["--store", str(place / "store"), "--output", str(place / "tuned.yaml")]
    return command + (["--allow", case.allow] if case.allow else [])


def _run_scripts(
    case: Case, answer: Mapping[str, Any], place: Path, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Run the plain script and the one with the printed lines in turns; return samples/s of each run."""
    plain, tuned = place / "plain.py", place / "tuned.py"
    plain.write_text(_fill_script(case, {}, seconds))
    tuned.write_text(_fill_script(case, answer["code"], seconds))
    num_processes = int(answer["best"]["params"].get("processes") or 1)
    launch = [sys.executable, "-m", "corewise", "launch", "--config", str(place / "tuned.yaml"), "--"]
    commands = {
        "default": [sys.executable, str(plain), str(case.batch)],
        "tuned": [*launch, sys.executable, str(tuned), str(max(1, case.batch // num_processes))],
    }
    rates: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=place)
            found = re.findall(r"rate (\S+) samples/s", done.stdout)
            if done.returncode or not found:
                raise ScriptError(f"{shlex.join(command)} failed: {done.stdout[-300:]}{done.stderr[-1500:]}")
            rates[name].append(sum(map(float, found)))
    return rates


def _fill_script(case: Case, code: Mapping[str, str], seconds: float) -> str:
    """Write the script with the printed lines: contexts around the forward pass, all others before the loop."""
    contexts = [line.split(": ...")[0].removeprefix("with ") for line in code.values() if line.startswith("with ")]
    lines = [line for line in code.values() if line.startswith(("import ", "model = ", "torch."))]
    if any("channels_last" in line for line in lines):
        lines.append("batch = batch.to(memory_format=torch.channels_last)")
    training = case.mode == "train"
    return SCRIPT.format(
        folder=str(WORKLOADS),
        factory=case.factory,
        mode=case.mode,
        switch="train" if training else "eval",
        training=training,
        lines="\n".join(lines),
        context=", ".join(contexts) or "contextlib.nullcontext()",
        seconds=seconds,
        warm_up_s=seconds / 2,
    )


@contextmanager
def keep_busy(num_loops: int) -> Iterator[None]:
    """Run busy loops, spread over the CPUs of this process."""
    cpus = sorted(os.sched_getaffinity(0))
    loops = []
    for number in range(num_loops):
        loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(loop.pid, {cpus[number % len(cpus)]})
        loops.append(loop)
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def show(outcomes: Sequence[Outcome]) -> None:
    """Print a table and the summary."""
    for each in outcomes:
        ratio = f"{each.measured:.2f}" if each.measured else "-"
        claimed = f"{each.claimed:.2f}" if each.claimed else "-"
        print(
            f"{each.case:44} {each.verdict:14} claimed {claimed:>5} arrived {ratio:>5} "
            f"{each.seconds:5.0f} s ({each.overrun:+.0%})  {each.setting} {each.problem}"
        )
    slower = [each for each in outcomes if each.is_slower]
    recommended = [each for each in outcomes if each.measured is not None]
    print(f"{len(outcomes)} searches, {len(recommended)} recommendations, {len(slower)} of them slower by over 3 %")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="MODEL:MODE:BATCH:BUDGET[:CLASS]")
    parser.add_argument("--co-runners", type=int, default=0, metavar="N", help="busy loops on the same CPUs")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="searches of each case")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each script, in turns")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured seconds of a script")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args()
    cases = [Case.parse(text) for text in args.cases]
    if shutil.which("corewise") is None and not (Path(sys.executable).parent / "corewise").exists():
        sys.exit("corewise is not installed here; run make setup")
    outcomes: list[Outcome] = []
    with keep_busy(args.co_runners):
        for case, text in [pair for _ in range(args.repeat) for pair in zip(cases, args.cases, strict=True)]:
            outcomes.append(run_case(case, text, args.rounds, args.seconds))
            show(outcomes[-1:])
            rows = [{**asdict(each), "is_slower": each.is_slower} for each in outcomes]
            write_figures(args.out, co_runners=args.co_runners, cases=rows)
    print()
    show(outcomes)
    return int(any(each.is_slower or each.problem for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
