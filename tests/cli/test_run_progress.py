"""The line that a finished trial gets in a log."""

from tests.cli.sample_stores import made_record

from corewise.cli.render.run_progress import TrialLabels, describe_outcome
from corewise.measured.parameters import TrialParameters


def test_large_rates_are_written_out() -> None:
    metrics = {"samples_per_s": 10684.2, "samples_per_s_low": 7900.4, "samples_per_s_high": 15400.9}
    record = made_record("0" * 16, metrics={**metrics, "gflop_per_s": 1234.5, "gbyte_per_s": 4.467})
    assert describe_outcome(record) == "10,684 samples/s [7,900 to 15,401], 1,234 Gflop/s, 4.467 GB/s"


def test_settings_are_named_as_a_study_writes_them() -> None:
    class Point:
        def __init__(self, **params: object) -> None:
            common = {"workload": "matmul", "mode": "infer", "processes": 1, "threads": 2, "batch": 1}
            self.params = TrialParameters.from_mapping({**common, **params})

    points = [Point(smt=False, interop_threads=None), Point(smt=True, interop_threads=2)]
    label = TrialLabels(points)  # type: ignore[arg-type]
    assert label(points[0].params.to_mapping()) == "matmul infer 1×2 batch 1 interop_threads=null smt=false"


def test_messages_are_described_by_latency_and_bandwidth() -> None:
    metrics = {"samples_per_s": 1e4, "latency_s": 2.5e-5, "gbyte_per_s": 4.467, "bus_gbyte_per_s": 4.467}
    assert describe_outcome(made_record("0" * 16, metrics=metrics)) == "25.0 µs, 4.467 GB/s"
