"""Single operators in benchdnn's notation, run as studies by the command line."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from .conftest import QUICK_PROTOCOL, Bench

pytestmark = pytest.mark.torch
BENCHDNN = """\
#!{python}
import sys
print("Template entries: perf,%engine%,%impl%,%name%,%prb%,%Gops%,%-time%,%-Gflops%,%0time%,%0Gflops%")
print("perf,cpu,jit:made_up,," + " ".join(sys.argv[1:]) + ",0.5,2,250,4,125")
"""


def test_a_convolution_is_recorded_with_and_without_reorders_and_with_benchdnn(bench: Bench) -> None:
    program = Path(bench.folder) / "benchdnn"
    program.write_text(BENCHDNN.format(python=sys.executable))
    program.chmod(0o755)
    study = bench.write_study(
        f"""
        question: What do reorders cost?
        workload: convolution
        runtime: torch
        mode: infer
        axes:
          args.reorders: [included, excluded]
          memory_format: [contiguous, channels_last]
        constraints: [(args.reorders == 'included') == (memory_format == 'contiguous')]
        fixed:
          threads: 1
          args.problem: pytorch-cpus:12
          args.mb: 1
          args.benchdnn: {program}
        protocol: {QUICK_PROTOCOL}
        """
    )
    done = bench.run("run", study, "--store", "store")
    assert done.returncode == 0, done.stderr
    records = {record["params"]["args.reorders"]: record for record in bench.read_records()}
    assert set(records) == {"included", "excluded"}
    for record in records.values():
        metrics = record["metrics"]
        assert metrics["check_error"] < 1e-5
        assert metrics["gflop_per_s"] > 0
        assert metrics["gbyte_per_s"] > 0
        assert (metrics["benchdnn_min_s"], metrics["benchdnn_avg_s"]) == (0.002, 0.004)
        facts = record["runs"][0]["ranks"][0]
        assert facts["problem"].startswith("g1mb1_ic512ih7iw7_oc512")
        assert facts["benchdnn_kernel"] == "jit:made_up"
    shown = bench.run("report", "--store", "store", "--json")
    assert "reorder tax" in shown.stdout
    assert bench.find_processes() == []


def test_an_error_in_the_problem_is_marked_before_anything_runs(bench: Bench) -> None:
    study = bench.write_study(
        f"""
        question: Is the mistake found?
        workload: convolution
        runtime: torch
        mode: infer
        fixed: {{args.problem: ic3xh5oc4kh3}}
        protocol: {QUICK_PROTOCOL}
        """
    )
    done = bench.run("plan", study)
    output = done.stdout + done.stderr
    assert "unknown entry 'xh'; valid: g, mb, ic" in output
    shown, caret = (line for line in output.splitlines() if line.strip() in ("ic3xh5oc4kh3", "^"))
    assert caret.index("^") - shown.index("ic3") == len("ic3")
