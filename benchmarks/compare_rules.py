"""Compare `corewise compare` with other rules on 200 equal and 200 slowed trials.

The trials are those of `equal_trials.py`: one convolution workload in sessions minutes apart. Half of the
trials are equal, half have one more convolution per twenty. Their samples are in `data/`, so anyone can run
this again. `--store` reads a store of `equal_trials.py`, and `--measure` measures new samples.

The whole verb (two stores of 200 trials, matched, tested, corrected) is compared on the same samples with
three other rules. The first is the verb's tests, without a correction and with Holm's. The second is the
fixed threshold of 7 % of a known model benchmark. The third is the rule of asv's `compare` and `continuous`:
medians of all samples differ by a factor (default 1.1), and the Mann-Whitney test over all samples has
p < 0.002.
"""

import argparse
import gzip
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from equal_trials import TRIALS_A_SESSION, measure, pair_sessions
from measuring import write_figures

from corewise.analysis.comparison.comparison_model import StoreComparison
from corewise.analysis.comparison.store_comparison import compare_stores
from corewise.stats.batch_comparison import Pair, PairTests, compare_pairs
from corewise.stats.occasion_comparison import OCCASION_MARGIN
from corewise.stats.trial_comparison import adjust_holm
from corewise.store.store import Store
from corewise.study.record import Record

DATA = Path(__file__).resolve().parent / "data" / "epyc-2-cores" / "equal_trials_medians.json.gz"
LOOKS = (10, 20)
NUM_PAIRS = 200
# Convolutions in a step.
EQUAL, SLOWED = 20, 21
ALPHA = 0.05
FIXED_THRESHOLD = 0.07
ASV_P_VALUE = 0.002
FEW = 5
NUM_DRAWS = 100

# The processes of one trial, each with its samples in seconds.
Samples = list[list[float]]
Sessions = dict[int, dict[tuple[int, int], Samples]]


@dataclass(frozen=True)
class Case:
    """A pair of trials and whether B was slowed on purpose."""

    a: Samples
    b: Samples
    slowed: bool

    @property
    def medians(self) -> Pair:
        a, b = ([statistics.median(samples) for samples in side] for side in (self.a, self.b))
        return Pair(a, b, LOOKS)


def group_by_session(records: Sequence[Record]) -> Sessions:
    """Group the samples of every trial by session, and within it by (convolutions, place)."""
    found: Sessions = {}
    for record in records:
        occasion = int(record.params["args.occasion"])
        # Trials with a negative occasion had a co-runner.
        if occasion >= 0:
            place = (int(record.params["args.repeats"]), occasion % TRIALS_A_SESSION)
            processes = [list(run["samples_s"]) for run in record.runs if run["status"] == "ok"]
            found.setdefault(occasion // TRIALS_A_SESSION, {})[place] = processes
    return found


def save(sessions: Sessions, path: Path) -> None:
    """Write the samples, in whole nanoseconds."""
    trials = [
        {
            "session": number, "convolutions": convolutions, "place": place,
            "samples_ns": [[round(1e9 * sample) for sample in process] for process in processes],
        }
        for number, session in sorted(sessions.items())
        for (convolutions, place), processes in sorted(session.items())
    ]  # fmt: skip
    text = json.dumps({"schema": 1, "looks": LOOKS, "trials": trials}, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def load(path: Path) -> Sessions:
    """Read the samples that `save` wrote."""
    found: Sessions = {}
    for trial in json.loads(gzip.decompress(path.read_bytes()))["trials"]:
        processes = [[sample / 1e9 for sample in process] for process in trial["samples_ns"]]
        found.setdefault(trial["session"], {})[trial["convolutions"], trial["place"]] = processes
    return found


def build_cases(sessions: Sessions, slowed: Sequence[bool], num_processes: int | None = None) -> list[Case]:
    """Pair sessions one or two apart; B is the slowed trial where `slowed` is true."""
    places = [
        (sessions[old], sessions[new], k) for old, new in pair_sessions(len(sessions)) for k in range(TRIALS_A_SESSION)
    ]
    return [
        Case(old[EQUAL, k][:num_processes], new[SLOWED if slow else EQUAL, k][:num_processes], slow)
        for (old, new, k), slow in zip(places, slowed, strict=False)
    ]


def judge_by_verb(cases: Sequence[Case]) -> list[str]:
    """Return the verdicts of the whole verb: write, read, match and compare two stores."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "b"):
            with Store.open(Path(folder) / name) as store:
                for i, case in enumerate(cases):
                    store.append(_build_record(i, getattr(case, name)))
        found = compare_stores(Path(folder) / "a", Path(folder) / "b")
    return _order_verdicts(found, len(cases))


def _build_record(number: int, processes: Samples) -> Record:
    runs = [
        {"status": "ok", "metrics": {"step_s": statistics.median(samples)}, "samples_s": samples}
        for samples in processes
    ]
    return Record(
        trial_id=f"{number:016x}",
        study="equal",
        status="ok",
        params={"workload": "convolutions", "mode": "infer", "args.number": number},
        runs=tuple(runs),
        protocol={"min_runs": LOOKS[0], "max_runs": LOOKS[1]},
    )


def _order_verdicts(found: StoreComparison, num: int) -> list[str]:
    verdicts = {trial.params["args.number"]: trial.verdict for trial in found.trials}
    return [verdicts[i] for i in range(num)]


def judge_by_tests(cases: Sequence[Case], adjust: Callable[[PairTests], Sequence[float]]) -> list[str]:
    """Return the verdicts of the verb's tests and margin with another correction."""
    tests = compare_pairs([case.medians for case in cases])
    margin = math.log1p(OCCASION_MARGIN)
    return [
        _name_direction(ratio, p <= ALPHA and abs(math.log(ratio)) > margin)
        for ratio, p in zip(tests.ratio.tolist(), adjust(tests), strict=True)
    ]


def judge_by_threshold(cases: Sequence[Case]) -> list[str]:
    """Apply a fixed threshold to the ratio of medians."""
    ratios = [statistics.median(case.medians.b) / statistics.median(case.medians.a) for case in cases]
    return [_name_direction(ratio, abs(ratio - 1) > FIXED_THRESHOLD) for ratio in ratios]


def judge_by_asv(cases: Sequence[Case], factor: float) -> list[str]:
    """Apply asv's rule to all samples of a trial, as asv keeps them."""
    verdicts = []
    for case in cases:
        a, b = (np.concatenate([np.asarray(each) for each in side]) for side in (case.a, case.b))
        ratio = float(np.median(b) / np.median(a))
        apart = ratio > factor or ratio < 1 / factor
        verdicts.append(_name_direction(ratio, apart and _compute_asv_p_value(a, b) < ASV_P_VALUE))
    return verdicts


def _compute_asv_p_value(a: np.ndarray, b: np.ndarray) -> float:
    """Compute the Mann-Whitney p-value by the normal approximation; ties count in the least significant order."""
    num = a.size * b.size
    ordered = np.sort(b)
    # Pairs in which a is above b.
    least = int(np.searchsorted(ordered, a, side="left").sum())
    most = int(np.searchsorted(ordered, a, side="right").sum())
    u = min(max(num / 2, least), most)
    z = abs(u - num / 2) / math.sqrt(num * (a.size + b.size + 1) / 12)
    return math.erfc(z / math.sqrt(2))


def _name_direction(ratio: float, differs: bool) -> str:
    return ("slower" if ratio > 1 else "faster") if differs else "same"


def judge_uncorrected(cases: Sequence[Case]) -> list[str]:
    return judge_by_tests(cases, lambda tests: tests.p_value.tolist())


def judge_by_holm(cases: Sequence[Case]) -> list[str]:
    return judge_by_tests(cases, lambda tests: adjust_holm(tests.p_value.tolist()))


def judge_by_false_discovery_rate(cases: Sequence[Case]) -> list[str]:
    """Apply the verb's own correction without stores, for many draws."""
    return judge_by_tests(cases, lambda tests: tests.adjusted.tolist())


RULES: dict[str, Callable[[Sequence[Case]], list[str]]] = {
    "corewise compare": judge_by_verb,
    "… without correction": judge_uncorrected,
    "… with Holm's": judge_by_holm,
    "fixed threshold of 7 %": judge_by_threshold,
    "asv, factor 1.1 (its default)": lambda cases: judge_by_asv(cases, 1.1),
    "asv, factor 1.05": lambda cases: judge_by_asv(cases, 1.05),
}


def count_verdicts(cases: Sequence[Case], verdicts: Sequence[str]) -> tuple[float, float, float]:
    """Return the shares of false verdicts on equal pairs, of slowdowns found, and of false verdicts among all."""
    equal = [v for case, v in zip(cases, verdicts, strict=True) if not case.slowed]
    slowed = [v for case, v in zip(cases, verdicts, strict=True) if case.slowed]
    num_false = sum(v != "same" for v in equal)
    num_given = sum(v != "same" for v in verdicts)
    return (
        num_false / len(equal) if equal else 0.0,
        sum(v == "slower" for v in slowed) / len(slowed) if slowed else 0.0,
        num_false / num_given if num_given else 0.0,
    )


def show_rules(sessions: Sessions, num_processes: int | None) -> dict[str, dict[str, float]]:
    """Print each rule's verdicts on 200 equal pairs, and on the same pairs with B slowed."""
    equal = build_cases(sessions, [False] * NUM_PAIRS, num_processes)
    slowed = build_cases(sessions, [True] * NUM_PAIRS, num_processes)
    processes = "all processes" if num_processes is None else f"the first {num_processes} processes of each trial"
    print(f"\n{len(equal)} pairs, {processes}\n{'rule':32} {'false verdicts':>15} {'slowdowns found':>16}")
    table = {}
    for name, rule in RULES.items():
        false, found = count_verdicts(equal, rule(equal))[0], count_verdicts(slowed, rule(slowed))[1]
        table[name] = {"false": false, "found": found}
        print(f"{name:32} {false:15.1%} {found:16.1%}")
    return table


def show_mixtures(sessions: Sessions) -> dict[int, dict[str, dict[str, float]]]:
    """Print how the corrections perform if only some of the 200 pairs are slowed; means over random choices."""
    random = np.random.default_rng(3)
    rules = {"Benjamini-Hochberg": judge_by_false_discovery_rate, "Holm": judge_by_holm, "none": judge_uncorrected}
    print(f"\nslowed, of {NUM_PAIRS}   correction           found   false among verdicts")
    table: dict[int, dict[str, dict[str, float]]] = {}
    for num_slowed in (1, 5, 20, 100, NUM_PAIRS):
        shares: dict[str, list[tuple[float, float, float]]] = {name: [] for name in rules}
        for _ in range(1 if num_slowed == NUM_PAIRS else NUM_DRAWS):
            chosen = set(random.choice(NUM_PAIRS, num_slowed, replace=False).tolist())
            cases = build_cases(sessions, [i in chosen for i in range(NUM_PAIRS)])
            for name, rule in rules.items():
                shares[name].append(count_verdicts(cases, rule(cases)))
        for name, ones in shares.items():
            _, found, share = (statistics.fmean(values) for values in zip(*ones, strict=True))
            table.setdefault(num_slowed, {})[name] = {"found": found, "false_share": share}
            print(f"{num_slowed:>14}   {name:18} {found:7.1%} {share:10.1%}")
    return table


def read_sessions(args: argparse.Namespace) -> Sessions:
    """Return the recorded samples, those of a store, or new ones."""
    if args.measure:
        args.store = args.store or Path("equal-trials-store")
        while len(pair_sessions(args.sessions)) * TRIALS_A_SESSION < NUM_PAIRS:
            args.sessions += 1
        for number in range(args.sessions):
            first = number * TRIALS_A_SESSION
            measure(args, [EQUAL, SLOWED], list(range(first, first + TRIALS_A_SESSION)))
    if args.store is None:
        return load(DATA)
    return group_by_session(Store.open(args.store, create=False).read_records().records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="a store of equal_trials.py")
    parser.add_argument("--measure", action="store_true", help="measure new samples into the store")
    parser.add_argument("--save", type=Path, help="write the samples to this file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--min-runs", type=int, default=LOOKS[0])
    parser.add_argument("--max-runs", type=int, default=LOOKS[1])
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sessions = read_sessions(args)
    if args.save:
        save(sessions, args.save)
    whole = show_rules(sessions, None)
    few = show_rules(sessions, FEW)
    mixtures = show_mixtures(sessions)
    write_figures(args.out, all_processes=whole, first_five=few, mixtures=mixtures, num_pairs=NUM_PAIRS)


if __name__ == "__main__":
    main()
