"""Predict the largest number of nodes from the smaller ones, on published tables, synthetic data and stores.

Published: the efficiencies of twelve trainings on three clusters (Ramirez-Gargallo 2020, table 13); 16 nodes are
predicted from 1 to 8, and 8 from 1 to 4. Synthetic: step times with known costs and noise. Measured: training
on the threads of one machine (strong scaling), from a store of this repository. `--store` adds the curves
of a user's own records. The peers get the same figures: the efficiency of the last count carried forward, Amdahl's
law, and the Universal Scalability Law (Gunther, 2007) by least squares.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measuring import describe_machine, write_figures

from corewise.report.publications.published_figures import find_shipped_folder, load_publication
from corewise.stats.scaling_model import Scaling, check_largest_count

ASKED_ERROR, ASKED_HALF_WIDTH = 0.10, 0.20
TABLE = "tensorflow-hpc-clusters-2020.yaml"
MEASURED = Path(__file__).resolve().parent / "data/xeon-16-cores/store"
NUM_SYNTHETIC = 50
SYNTHETIC_NOISE = 0.015
TRUTHS: Mapping[str, tuple[Callable[[int], float], Scaling]] = {
    "synthetic, bandwidth": (lambda n: 1 + 0.8 * (n - 1) / n, Scaling.WEAK),
    "synthetic, ring latency": (lambda n: 1 + 0.2 * (n - 1) / n + 0.01 * (n - 1), Scaling.WEAK),
    "synthetic, tree latency": (lambda n: 1 + 0.05 * math.log2(n), Scaling.WEAK),
    "synthetic, overlap": (lambda n: 1 + max(0.0, 0.9 * (n - 1) / n - 0.4), Scaling.WEAK),
    "synthetic, strong": (lambda n: 1 / n + 0.1 * (n - 1) / n, Scaling.STRONG),
}


@dataclass(frozen=True)
class Case:
    """One curve: step times of each count, the largest of which is predicted."""

    name: str
    steps_s: Mapping[int, Sequence[float]]
    scaling: Scaling


def read_published() -> Iterator[Case]:
    """Read the published efficiencies as step times: weak scaling, so a step takes 1 / E times as long."""
    publication = load_publication(find_shipped_folder() / TABLE)
    figure = next(each for each in publication.figures if each.key == "node-efficiency")
    for line in figure.lines:
        steps_s = {int(float(x)): [1 / y] for x, y in zip(line.x, line.y, strict=True)}
        yield Case(f"{line.workload}, {line.machine}, {line.setting}", steps_s, Scaling.WEAK)


def simulate() -> Iterator[Case]:
    """Simulate step times of five runs each, and the true step of 16 nodes."""
    for name, (truth, scaling) in TRUTHS.items():
        for seed in range(NUM_SYNTHETIC):
            generator = np.random.default_rng(seed)
            noisy = {n: (truth(n) * np.exp(generator.normal(0, SYNTHETIC_NOISE, 5))).tolist() for n in (1, 2, 4, 8)}
            yield Case(name, {**noisy, 16: [truth(16)]}, scaling)


def read_store(path: Path) -> Iterator[Case]:
    """Read the scaling curves of a store that have enough counts."""
    from corewise.analysis.columns import get_run_rates
    from corewise.analysis.groups import group_records
    from corewise.analysis.scaling.scaling_curves import find_scaling_curves
    from corewise.analysis.sources import read_sources

    sources, _ = read_sources([path])
    for group in group_records(sources):
        for curve in find_scaling_curves(group):
            base = curve.base
            steps_s = {}
            for point in curve.points:
                growth = point.count / base.count if curve.scaling is Scaling.WEAK else 1.0
                samples = base.rate * base.step_s * growth
                steps_s[point.count] = [samples / rate for rate in get_run_rates(group.records[point.trial])]
            yield Case(f"{path.name}, {group.workload_name}, {curve.unit}", steps_s, curve.scaling)


def read_threads(path: Path) -> Iterator[Case]:
    """Read training over threads: the same work on more cores, which share memory instead of a network."""
    from corewise.analysis.columns import get_run_rates, split_by_number
    from corewise.analysis.groups import group_records
    from corewise.analysis.sources import read_sources

    sources, _ = read_sources([path])
    for group in group_records(sources):
        if "threads" not in group.axes or "processes" in group.axes:
            continue
        counts = group.get_numbers("threads")
        for places in split_by_number(group.index_without(("threads",))):
            steps_s = {int(counts[i]): [1 / rate for rate in get_run_rates(group.records[i])] for i in places}
            batch = int(group.get_numbers("batch")[places[0]])
            yield Case(f"{group.workload_name}, batch {batch}, threads", steps_s, Scaling.STRONG)


def drop_largest_count(case: Case) -> Case:
    """Return a case without its largest count, so that the next one is held out."""
    largest = max(case.steps_s)
    steps_s = {count: values for count, values in case.steps_s.items() if count != largest}
    return Case(case.name, steps_s, case.scaling)


def predict_by_peers(case: Case) -> dict[str, float]:
    """Predict the step of the largest count with simpler laws from the same medians."""
    counts = sorted(case.steps_s)
    target = counts.pop()
    share = {n: counts[0] / n if case.scaling is Scaling.STRONG else 1.0 for n in (*counts, target)}
    medians = {n: statistics.median(case.steps_s[n]) for n in counts}
    # The loss of efficiency: 1 / E = step / (step of perfect scaling).
    loss = {n: medians[n] / (medians[counts[0]] * share[n]) for n in counts}
    n = np.array(counts, dtype=float)
    y = np.array([loss[count] for count in counts]) - 1
    amdahl = float((n - 1) @ y / ((n - 1) @ (n - 1)))
    rows = np.column_stack([n - 1, n * (n - 1)])
    contention, coherence = np.linalg.lstsq(rows, y, rcond=None)[0]
    predicted = {
        "last efficiency": loss[counts[-1]],
        "Amdahl": 1 + amdahl * (target - 1),
        "USL": 1 + float(contention) * (target - 1) + float(coherence) * target * (target - 1),
    }
    return {name: each * medians[counts[0]] * share[target] for name, each in predicted.items()}


def evaluate(case: Case) -> dict[str, float | str | bool] | None:
    """Predict the held-out count of a case; None if it has too few counts."""
    check = check_largest_count(case.steps_s, case.scaling)
    if check is None:
        return None
    errors = {f"error of {n}": each / check.measured_s - 1 for n, each in predict_by_peers(case).items()}
    return {
        "case": case.name,
        "error": check.error,
        "is_covered": check.is_covered,
        "relative_half_width": check.prediction.relative_half_width,
        **errors,
    }


def show(title: str, rows: Sequence[Mapping[str, float | str | bool]]) -> dict[str, float]:
    """Print and return the summary of some cases."""
    errors = [abs(float(row["error"])) for row in rows]
    widths = [float(row["relative_half_width"]) for row in rows]
    summary = {
        "num": float(len(rows)),
        "within_asked_error": float(sum(error <= ASKED_ERROR for error in errors)),
        "covered": float(sum(bool(row["is_covered"]) for row in rows)),
        "within_asked_width": float(sum(width <= ASKED_HALF_WIDTH for width in widths)),
        "median_error": statistics.median(errors),
        "largest_error": max(errors),
    }
    num = len(rows)
    print(
        f"{title}: {summary['within_asked_error']:.0f} of {num} within {100 * ASKED_ERROR:.0f} %, "
        f"{summary['covered']:.0f} covered, {summary['within_asked_width']:.0f} intervals of at most "
        f"±{100 * ASKED_HALF_WIDTH:.0f} %; error: median {100 * summary['median_error']:.1f} %, "
        f"largest {100 * summary['largest_error']:.1f} %"
    )
    for name in ("last efficiency", "Amdahl", "USL"):
        peer = [abs(float(row[f"error of {name}"])) for row in rows]
        within = sum(error <= ASKED_ERROR for error in peer)
        summary[f"median error of {name}"] = statistics.median(peer)
        print(
            f"    {name}: {within} of {num} within {100 * ASKED_ERROR:.0f} %; error: median "
            f"{100 * statistics.median(peer):.1f} %, largest {100 * max(peer):.1f} %"
        )
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, action="append", default=[], help="also predict the curves of a store")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    print(describe_machine())
    published = list(read_published())
    groups = {
        "published": published,
        "published, up to 8": [drop_largest_count(case) for case in published],
        "synthetic": list(simulate()),
        "measured, threads": list(read_threads(MEASURED)),
        "stores": [case for path in args.store for case in read_store(path)],
    }
    rows = {name: [row for row in map(evaluate, cases) if row is not None] for name, cases in groups.items()}
    for row in (*rows["published"], *rows["measured, threads"], *rows["stores"]):
        print(
            f"{row['case']:46} error {100 * float(row['error']):+6.1f} %, interval "
            f"±{100 * float(row['relative_half_width']):4.1f} %, {'covered' if row['is_covered'] else 'NOT covered'}"
        )
    summaries = {name: show(name, each) for name, each in rows.items() if each}
    write_figures(args.out, cases=rows, summaries=summaries)


if __name__ == "__main__":
    main()
