"""The readers of files that people and other tools may write, as targets of `fuzz_readers.py`.

Each target takes the bytes of a file. It raises only if the reader raises an error that it does not declare,
or if what was read cannot be used.
"""

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz_mutations import mutate_bytes, mutate_json, mutate_line, mutate_yaml

from corewise.errors import UserError
from corewise.measured.parameters import TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, Trial
from corewise.run.rank_results import read_result
from corewise.run.run_collector import collect_run, compute_record_metrics
from corewise.store.brief_records import extract_brief, extract_outline
from corewise.store.file_parts import FilePart, read_part
from corewise.store.json_rows import build_export_row
from corewise.store.sealed_lines import SealedEntry
from corewise.store.sql_columns import summarize_row
from corewise.study.planning.expansion import MachineView, expand_study
from corewise.study.record import Record
from corewise.study.study import load_study
from corewise.study.study_sections import list_candidates
from corewise.study.trial_run import TrialRun
from corewise.study.tuned_file import read_tuned

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "fuzz" / "corpus"
# Larger studies are read but not expanded.
MAX_EXPANDED_POINTS = 50
MACHINE = MachineView(4, 8)
TRIAL = Trial(
    trial_id="0" * 16,
    params=TrialParameters.from_mapping({"workload": "matmul", "mode": "infer", "runtime": "numpy"}),
    protocol=Protocol(),
    ranks=(RankPlacement((0,)),),
    env={},
    python=("python",),
    work={"flops_per_sample": 1e6, "bytes_per_sample": 1e6},
)

Mutate = Callable[[Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class ReaderTarget:
    """A reader, how its files are mutated, and how many cases a full run has."""

    name: str
    check: Callable[[bytes], None]
    mutate: Mutate
    num_cases: int

    def make_case(self, dice: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        """Return a mutation of the data."""
        try:
            return self.mutate(dice, data, seeds)
        except RecursionError:
            # The data is nested too deeply to be mutated by its values.
            return mutate_bytes(dice, data, seeds)

    def read_seeds(self) -> list[bytes]:
        """Read the corpus of the reader."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


def check_study_file(data: bytes) -> None:
    """Read a study and expand it if it is small."""
    with suppress(UserError):
        study = load_study(_write_file("study.yaml", data))
        candidates = list_candidates(study.axes, study.fixed)
        num_points = math.prod(map(len, candidates.values())) * len(study.workloads) * len(study.modes)
        if num_points <= MAX_EXPANDED_POINTS:
            expand_study(study, MACHINE)


def check_tuned_file(data: bytes) -> None:
    """Read a tuned file."""
    with suppress(UserError):
        str(read_tuned(_write_file("tuned.yaml", data)))


def check_store_line(data: bytes) -> None:
    """Read a record file and take from each record what the verbs take."""
    read_part(FilePart(_write_file("records.jsonl", data), 0, None), _use_record, settle_s=0)


def _use_record(record: Record, entry: SealedEntry) -> None:
    for shorten in (extract_brief, extract_outline):
        shorten(record)
    summarize_row(record, entry)
    json.dumps(build_export_row(record), allow_nan=False).encode()


def check_rank_result(data: bytes) -> None:
    """Read a result file, and compute a run and the metrics of a record from it."""
    run = collect_run(TRIAL, [read_result(_write_file("rank-0.json", data), 0)])
    stored: Any = json.loads(json.dumps(run.to_json(), allow_nan=False))
    if run.status == "ok":
        assert TrialRun.from_json(stored).samples_s
        assert compute_record_metrics(TRIAL, [run, run, run])


@cache
def _make_folder() -> tempfile.TemporaryDirectory[str]:
    shared_memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None)


def _write_file(name: str, data: bytes) -> Path:
    path = Path(_make_folder().name) / name
    path.write_bytes(data)
    return path


TARGETS = {
    target.name: target
    for target in (
        ReaderTarget("study_file", check_study_file, mutate_yaml, 100_000),
        ReaderTarget("tuned_file", check_tuned_file, mutate_yaml, 100_000),
        ReaderTarget("store_line", check_store_line, mutate_line, 1_000_000),
        ReaderTarget("rank_result", check_rank_result, mutate_json, 1_000_000),
    )
}
