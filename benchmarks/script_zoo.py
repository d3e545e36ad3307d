"""Tune real training scripts as they are, and check the advice by hand.

Each script is tuned with `corewise tune --`, without a pattern. Then the default command and the tuned command are
started by hand, interleaved, and their steps are counted for a few seconds each. The table shows the recognised
format, the advice, the ratio by hand, and whether the advice points in the right direction.

The scripts of others are not part of this project. Fetch them into one folder and name it with --sources:

    git clone https://github.com/karpathy/nanoGPT   # 3adf61e154c3fe3fca428ad6bc3818b27a3b8291
    git clone https://github.com/karpathy/minGPT    # 37baab71b9abea1b76ab957409a1cc2fbfba8a26
    git clone https://github.com/pytorch/examples   # 77f55b912142e11fcfdf5b530231fb9c52f181e8
    python benchmarks/script_zoo.py --sources FOLDER --budget 3m

Each runs in a copy, with a small generated data set. What is missing is listed as skipped: a folder, or a package
such as torchvision for imagenet/main.py. Keras and the Trainer of Hugging Face need no source: their scripts are in
workloads/. mnist/main.py gets generated images from a stand-in for torchvision.
"""

import argparse
import importlib.util
import itertools
import json
import os
import pickle
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from measuring import describe_machine

WORKLOADS = Path(__file__).parent.absolute() / "workloads"
# A ratio by hand within this distance of 1 contradicts no advice.
TOLERANCE = 0.03
MAX_START_S = 180.0


@dataclass(frozen=True)
class ZooScript:
    """A real training script.

    Attributes:
        source: The folder in --sources; empty for scripts of this project.
        folder: Where it starts, below its source.
        arguments: Its command after `python`.
        count: Finds the number of steps or samples in a line, to count them by hand.
        prepare: Writes the data that it reads.
        needs: Modules that must be installed.
    """

    name: str
    source: str
    folder: str
    arguments: tuple[str, ...]
    count: str
    prepare: Callable[[Path], None] = lambda folder: None
    needs: tuple[str, ...] = ("torch",)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass
class ZooResult:
    """What a script gave; `reason` says why it was skipped or failed."""

    name: str
    reason: str = ""
    recognised: str = ""
    advice: str = ""
    promised: float | None = None
    by_hand: float | None = None
    is_right: bool | None = None
    default_rates: Sequence[float] = ()
    tuned_rates: Sequence[float] = ()


def write_characters(folder: Path) -> None:
    """Write the files that nanoGPT's prepare.py makes, from random characters."""
    rng, characters = random.Random(0), sorted("abcdefghijklmnopqrstuvwxyz \n.,")
    data = folder / "data" / "shakespeare_char"
    for name, num in (("train", 200_000), ("val", 20_000)):
        (data / f"{name}.bin").write_bytes(array("H", rng.choices(range(len(characters)), k=num)).tobytes())
    tables = {"stoi": {c: i for i, c in enumerate(characters)}, "itos": dict(enumerate(characters))}
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(characters), **tables}))


def write_words(folder: Path) -> None:
    """Write random sentences in place of the data of word_language_model."""
    rng, words = random.Random(0), [f"w{number}" for number in range(1000)]
    data = folder / "data" / "wikitext-2"
    data.mkdir(parents=True, exist_ok=True)
    for name, num in (("train", 4000), ("valid", 40), ("test", 40)):
        lines = (" ".join(rng.choices(words, k=20)) for _ in range(num))
        (data / f"{name}.txt").write_text("\n".join(lines) + "\n")


def write_text(folder: Path) -> None:
    """Write the text of minGPT's chargpt.py."""
    rng = random.Random(0)
    (folder / "input.txt").write_text("".join(rng.choices("O God, hear me!\n", k=50_000)) + "O God, O God!")


SCRIPTS = (
    ZooScript(
        "nanoGPT train.py",
        "nanoGPT",
        "",
        (
            *("train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=1"),
            *("--eval_interval=100000", "--log_interval=1", "--block_size=64", "--batch_size=12", "--n_layer=4"),
            *("--n_head=4", "--n_embd=128", "--dropout=0.0", "--max_iters=1000000"),
        ),
        r"^iter (\d+):",
        write_characters,
    ),
    ZooScript(
        "word_language_model",
        "examples",
        "word_language_model",
        (
            *("main.py", "--epochs", "1000", "--log-interval", "5", "--emsize", "64", "--nhid", "64"),
            *("--bptt", "16", "--batch_size", "16"),
        ),
        r"\|\s+(\d+)/\s*\d+ batches",
        write_words,
    ),
    ZooScript(
        "mnist (generated images)",
        "examples",
        "mnist",
        ("main.py", "--no-accel", "--epochs", "1000", "--log-interval", "2"),
        r"Train Epoch: \d+ \[(\d+)/",
        env={"PYTHONPATH": str(WORKLOADS / "stand_ins")},
    ),
    ZooScript(
        "imagenet --dummy",
        "examples",
        "imagenet",
        ("main.py", "--dummy", "-a", "resnet18", "-b", "8", "-j", "0", "-p", "1"),
        r"Epoch: \[\d+\]\[\s*(\d+)/",
        needs=("torch", "torchvision"),
    ),
    ZooScript(
        "minGPT chargpt.py",
        "minGPT",
        "projects/chargpt",
        (
            *("chargpt.py", "--model.model_type=gpt-nano", "--data.block_size=32", "--trainer.batch_size=16"),
            *("--trainer.num_workers=0", "--trainer.max_iters=1000000"),
        ),
        r"iter (\d+): train loss",
        write_text,
    ),
    ZooScript(
        "Hugging Face Trainer",
        "",
        "",
        ("trainer_gpt.py",),
        r"\|\s*(\d+)/1000000 \[",
        needs=("torch", "transformers", "accelerate"),
    ),
    ZooScript("Keras fit()", "", "", ("keras_fit.py",), r"^\s*(\d+)/64\b", needs=("keras", "torch")),
)


def explain_missing(script: ZooScript, sources: Path | None) -> str:
    """Explain why a script cannot run here; empty if it can."""
    missing = [name for name in script.needs if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    if script.source and (sources is None or not (sources / script.source / script.folder).is_dir()):
        return f"no {script.source}/{script.folder} in --sources"
    return ""


def copy_script(script: ZooScript, sources: Path | None, target: Path) -> Path:
    """Copy a script with its data into a new folder; return the folder in which it starts."""
    if not script.source:
        target.mkdir()
        shutil.copy2(WORKLOADS / script.arguments[0], target)
        return target
    assert sources is not None
    ignored = shutil.ignore_patterns(".git", "*.ipynb", "*.jpg", "*.png")
    shutil.copytree(sources / script.source, target, ignore=ignored)
    script.prepare(target / script.folder)
    return target / script.folder


def run_script(script: ZooScript, sources: Path | None, options: argparse.Namespace, work: Path) -> ZooResult:
    """Tune a script, then count its steps by hand with the default and with the advice."""
    reason = explain_missing(script, sources)
    if reason:
        return ZooResult(script.name, f"skipped: {reason}")
    folder = copy_script(script, sources, work / re.sub(r"\W+", "-", script.name))
    paths = [script.env.get("PYTHONPATH", ""), str(folder.parent.parent) if script.source == "minGPT" else ""]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (*paths, os.environ.get("PYTHONPATH", ""))))}
    command = [sys.executable, *script.arguments]
    corewise = [sys.executable, "-P", "-m", "corewise"]
    tuned_file = folder / "tuned.yaml"
    asked = ["tune", "--json", "--budget", options.budget, "--store", str(work / "store"), "-o", str(tuned_file)]
    done = subprocess.run([*corewise, *asked, "--", *command], cwd=folder, env=env, capture_output=True, text=True)
    if not done.stdout.strip():
        problem = " ".join(line for line in done.stderr.splitlines() if line.startswith("corewise: "))
        return ZooResult(script.name, f"tune failed: {problem.removeprefix('corewise: ')}")
    answer: dict[str, Any] = json.loads(done.stdout)
    result = ZooResult(script.name, recognised=answer["throughput_source"], advice=answer["verdict"])
    if answer["verdict"] != "faster":
        return result
    result.advice = str(answer["best"]["words"])
    result.promised = float(answer["speedup"])
    tuned = [*corewise, "launch", "--quiet", "--config", str(tuned_file), "--", *command]
    rates: dict[str, list[float]] = {"default": [], "tuned": []}
    for _ in range(options.runs):
        for name, each in (("default", command), ("tuned", tuned)):
            rates[name].append(count_by_hand(each, script.count, folder, env, options.seconds))
    result.default_rates, result.tuned_rates = rates["default"], rates["tuned"]
    result.by_hand = statistics.median(rates["tuned"]) / statistics.median(rates["default"])
    result.is_right = result.by_hand > 1 - TOLERANCE
    return result


def count_by_hand(command: Sequence[str], pattern: str, folder: Path, env: Mapping[str, str], seconds: float) -> float:
    """Start a command and return how fast its counter rises, without the first line and without restarts."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**env, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    found, rest = re.compile(pattern, re.MULTILINE), ""
    counts: list[tuple[float, int]] = []
    began = time.monotonic()
    try:
        while time.monotonic() - began < MAX_START_S:
            time.sleep(0.005)
            rest += re.sub(r"\x1b\[[0-9;]*m", "", (process.stdout.read() or b"").decode(errors="replace"))
            lines = re.split(r"[\r\n\b]+", rest)
            rest = lines[-1]
            numbers = [int(match[1]) for line in lines if (match := found.search(line))]
            if numbers and (not counts or numbers[-1] != counts[-1][1]):
                counts.append((time.monotonic(), numbers[-1]))
            if len(counts) > 3 and counts[-1][0] - counts[1][0] > seconds:
                break
            if process.poll() is not None:
                break
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(counts[1:]) if b[1] > a[1]]
    if not steps:
        raise RuntimeError(f"{' '.join(command)} printed no count that rises")
    return sum(num for _, num in steps) / sum(took_s for took_s, _ in steps)


def format_row(result: ZooResult) -> list[str]:
    """Format the row of a script."""
    promised = "" if result.promised is None else f"{result.promised:.2f}"
    by_hand = "" if result.by_hand is None else f"{result.by_hand:.2f}"
    right = {True: "yes", False: "NO", None: ""}[result.is_right]
    return [result.name, result.recognised or result.reason, result.advice, promised, by_hand, right]


def print_table(results: Sequence[ZooResult]) -> None:
    """Print the table."""
    header = ["script", "recognised format", "advice", "promised", "by hand", "right direction"]
    rows = [header, *(format_row(each) for each in results)]
    widths = [min(60, max(len(row[i]) for row in rows)) for i in range(len(header))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, help="the folder with the fetched repositories")
    parser.add_argument("--budget", default="3m", help="of each tuning")
    parser.add_argument("--runs", type=int, default=3, help="runs by hand of each command")
    parser.add_argument("--seconds", type=float, default=8.0, help="counted in each run by hand")
    parser.add_argument("--only", action="append", help="a part of a script's name; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file")
    options = parser.parse_args()
    chosen = [each for each in SCRIPTS if not options.only or any(part in each.name for part in options.only)]
    results = []
    with tempfile.TemporaryDirectory(prefix="script-zoo-") as work:
        for script in chosen:
            try:
                results.append(run_script(script, options.sources, options, Path(work)))
            except RuntimeError as problem:
                results.append(ZooResult(script.name, f"failed: {problem}"))
            print("  ".join(filter(None, format_row(results[-1]))), file=sys.stderr, flush=True)
    text = json.dumps({"machine": describe_machine(), "scripts": [asdict(each) for each in results]}, indent=1)
    if options.out:
        options.out.write_text(text)
    if options.json:
        print(text)
    else:
        print_table(results)


if __name__ == "__main__":
    main()
