"""The summary of a run: commands that can be copied, and what to do about failures."""

from tests.end_to_end.conftest import Bench

STUDY = """
question: Does it fail?
workload: own.py:factory
mode: infer
runtime: numpy
axes: {args.fails: [0, 1]}
fixed: {threads: 1, batch: 1}
protocol: {min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: 0.01, max_warmup_s: 0.1, timeout_s: 60,
           max_repeats_disturbed: 0}
"""
OWN = """
def factory(batch, mode, fails):
    if fails:
        raise RuntimeError("no weights")
    return {"step": lambda: sum(range(1000)), "samples_per_step": 1}
"""


def test_the_summary_explains_how_to_retry_failures_and_quotes_the_store(bench: Bench) -> None:
    bench.write_factory(OWN)
    done = bench.run("run", bench.write_study(STUDY), "--store", "my store")
    assert done.returncode == 1
    assert "1 ok, 1 failed, 0 skipped" in done.stdout
    assert "corewise show --store 'my store'" in done.stdout
    assert "add --retry-failed" in done.stdout


def test_a_study_whose_trials_were_all_skipped_measured_nothing(bench: Bench) -> None:
    study = """
    question: Is there room?
    workload: stream
    mode: infer
    runtime: numpy
    axes: {args.operation: [copy, triad]}
    fixed: {threads: 1, args.size_bytes: 2600000000000}
    """
    path = bench.write_study(study)
    for _ in range(2):
        done = bench.run("run", path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "nothing was measured: all 2 trials of the study were skipped:" in done.stderr
        assert "Traceback" not in done.stderr
