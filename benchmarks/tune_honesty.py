"""Check that the tuner reports "no difference" where there is none.

A real workload is tuned many times, from beginning to end: search, fresh runs, cold starts. Its knobs are
disconnected: all settings run the same code and differ only in a variable that nothing reads. An interrupted
run resumes.

    python benchmarks/tune_honesty.py resnet18 --batch 2 --args image_size=64 --budget 40s --out honesty.json
"""

import argparse
import json
import shutil
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from measuring import describe_machine

from corewise.measured.trial import Protocol
from corewise.run.plan import Plan
from corewise.store.store import Store
from corewise.study.durations import parse_duration_s
from corewise.tuning.question import Tunable, build_question, read_assignments
from corewise.tuning.search.setting_space import Knob, Setting, Space
from corewise.tuning.session import Tuning
from corewise.tuning.silent_progress import SilentProgress

# Choices of each disconnected knob, about as many as a real workload has.
NUM_CHOICES = (4, 3, 3, 2, 2, 2)


@dataclass(frozen=True)
class DisconnectedTunable(Tunable):
    """A question in which every setting is the default under another name."""

    def plan(self, setting: Setting, protocol: Protocol, generation: str = "") -> Plan:
        study = self.question.build_study(dict(self.space.base), protocol)
        named = {} if setting == self.space.default else {"COREWISE_CUT_OFF": "-".join(map(str, setting))}
        return self.planner.plan(replace(study, environment={**study.environment, **named}), generation)


def disconnect_knobs(tunable: Tunable) -> DisconnectedTunable:
    """Return the question with knobs that have no effect."""
    knobs = tuple(
        Knob(f"knob {number}", tuple({f"knob {number}": choice} for choice in range(num)))
        for number, num in enumerate(NUM_CHOICES)
    )
    offer = replace(tunable.offer, space=Space(tunable.space.base, knobs), left_out=())
    return DisconnectedTunable(tunable.question, tunable.planner, offer, tunable.traits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject")
    parser.add_argument("--mode", default="infer")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--args", action="append", default=[])
    parser.add_argument("--runtime", default="torch")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--budget", default="40s")
    parser.add_argument("--store", type=Path, default=Path("honesty-store"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    fixed = {f"args.{name}": value for name, value in read_assignments(given.args, "--args").items()}
    question = build_question(given.subject, mode=given.mode, batch=given.batch, runtime=given.runtime, fixed=fixed)
    tunable = disconnect_knobs(Tunable.from_question(question))
    runs = json.loads(given.out.read_text())["runs"] if given.out.exists() else []
    while len(runs) < given.runs:
        # Results of an earlier run must not help this one.
        shutil.rmtree(given.store, ignore_errors=True)
        store = Store.open(given.store, create=True)
        result = Tuning(tunable, store, SilentProgress(), budget_s=parse_duration_s(given.budget, "--budget")).run()
        low, high = result.speedup_interval or (None, None)
        line = {
            "verdict": result.verdict,
            "speedup": result.speedup,
            "interval": [low, high],
            "num_tried": len(result.tried),
            "seconds": round(result.seconds, 1),
        }
        runs.append(line)
        print(f"[{len(runs)}/{given.runs}] {line}", file=sys.stderr)
        given.out.write_text(
            json.dumps(
                {"machine": describe_machine(), "subject": vars(given) | {"out": "", "store": ""}, "runs": runs},
                indent=1,
            )
            + "\n"
        )
    honest = sum(line["verdict"] == "no difference" for line in runs)
    tried = statistics.median(line["num_tried"] for line in runs)
    print(f"no difference: {honest} of {len(runs)} ({honest / len(runs):.0%}); median settings tried: {tried:g}")


if __name__ == "__main__":
    main()
