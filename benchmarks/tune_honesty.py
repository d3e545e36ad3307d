"""Does the tuner say "no difference" where there is none?

A real workload is tuned again and again, from beginning to end: search, fresh runs, cold starts. Its knobs
are cut off: every setting runs the same thing, told apart only by a variable that nobody reads. Goes on where
it stopped.

    python benchmarks/tune_honesty.py resnet18 --batch 2 --args image_size=64 --budget 40s --out honesty.json
"""

import argparse
import json
import shutil
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from measuring import machine_line

from corewise.engine.plan import Plan
from corewise.spec.trial import Protocol
from corewise.store.store import Store
from corewise.tuner.durations import read_duration
from corewise.tuner.follow import Quiet
from corewise.tuner.question import Tunable, make_question, read_assignments
from corewise.tuner.session import Tuning
from corewise.tuner.space import Knob, Setting, Space

NUM_CHOICES = (4, 3, 3, 2, 2, 2)  # of each knob that is cut off, about as many as a real workload has


@dataclass(frozen=True)
class CutOff(Tunable):
    """A question whose every setting is the default under another name."""

    def plan(self, setting: Setting, protocol: Protocol) -> Plan:
        study = self.question.study({n: v for n, v in self.space.base.items() if n in self.real}, protocol)
        named = {} if setting == self.space.default else {"COREWISE_CUT_OFF": "-".join(map(str, setting))}
        return self.planner.plan(replace(study, environment={**study.environment, **named}))

    @property
    def real(self) -> set[str]:
        return set(self.space.base)


def cut_off(tunable: Tunable) -> CutOff:
    """The question with knobs that do nothing."""
    knobs = tuple(
        Knob(f"knob {number}", tuple({f"knob {number}": choice} for choice in range(num)))
        for number, num in enumerate(NUM_CHOICES)
    )
    offer = replace(tunable.offer, space=Space(tunable.space.base, knobs), left_out=())
    return CutOff(tunable.question, tunable.planner, offer, tunable.traits)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    question = make_question(
        given.subject, mode=given.mode, batch=given.batch, runtime=given.runtime, fixed=fixed
    )
    tunable = cut_off(Tunable.of(question))
    told = json.loads(given.out.read_text())["runs"] if given.out.exists() else []
    while len(told) < given.runs:
        shutil.rmtree(given.store, ignore_errors=True)  # what an earlier run found is not to help this one
        store = Store.open(given.store, create=True)
        result = Tuning(tunable, store, Quiet(), budget_s=read_duration(given.budget)).run()
        low, high = result.speedup_interval or (None, None)
        line = {
            "verdict": result.verdict,
            "speedup": result.speedup,
            "interval": [low, high],
            "num_tried": len(result.tried),
            "seconds": round(result.seconds, 1),
        }
        told.append(line)
        print(f"[{len(told)}/{given.runs}] {line}", file=sys.stderr)
        given.out.write_text(
            json.dumps(
                {"machine": machine_line(), "subject": vars(given) | {"out": "", "store": ""}, "runs": told},
                indent=1,
            )
            + "\n"
        )
    honest = sum(line["verdict"] == "no difference" for line in told)
    tried = statistics.median(line["num_tried"] for line in told)
    print(
        f"no difference: {honest} of {len(told)} ({honest / len(told):.0%}); median settings tried: {tried:g}"
    )


if __name__ == "__main__":
    main()
