"""Published figures of HPC applications next to one's own kernels are marked as different quantities."""

from typing import Any

import pytest
from tests.report.sample_trials import group_of, trial

from corewise.analysis.ranking import rank_trials
from corewise.report.publications.comparison_tables import compare_with_published
from corewise.report.publications.published_figures import Publication, find_shipped_folder, load_publication
from corewise.report.report_model import Table
from corewise.study.record import Record
from corewise.study.study import load_study


@pytest.fixture(scope="module")
def paper() -> Publication:
    return load_publication(find_shipped_folder() / "tensorflow-doing-hpc-2019.yaml")


def kernel(workload: str, rate: float, *, gbyte: float = 1.0, gflop: float = 1.0, **params: Any) -> Record:
    return trial(
        rate,
        params={"workload": workload, "mode": "infer", "batch": 1, **params},
        metrics={"gbyte_per_s": gbyte, "gflop_per_s": gflop},
    )


def table_of(*records: Record, publications: list[Publication]) -> Table:
    group = group_of(*records)
    [table] = compare_with_published(group, rank_trials(group), publications).tables
    return table


def own(table: Table) -> list[tuple[str, str, str]]:
    return [(row[0], row[2], row[3]) for row in table.rows if row[1] == "this machine"]


def test_every_application_of_the_study_has_published_figures(paper: Publication) -> None:
    stated = {name for figure in paper.figures for name in figure.workloads}
    # Pushing a vector to another task takes several ranks, so it has its own study.
    assert stated == {*load_study("papers/tensorflow-hpc").workloads, *load_study("communication").workloads}
    assert all(figure.differs for figure in paper.figures)


def test_twice_as_many_threads_stand_above_twice_as_many_gpus(paper: Publication) -> None:
    table = table_of(
        *(kernel("cg", rate, threads=threads) for threads, rate in ((1, 10.0), (2, 19.0), (3, 20.0))),
        publications=[paper],
    )
    [(what, setting, value), *_] = own(table)
    assert (what, setting) == ("throughput with twice as many threads", "1 to 2 threads")
    assert value.startswith("1.90× (")
    assert "K80, 2 to 4 GPUs, size 32768" in {row[2] for row in table.rows}
    assert "These are different quantities: they doubled GPUs" in table.caption


def test_twice_as_many_processes_of_a_distributed_kernel_stand_above_twice_as_many_gpus(paper: Publication) -> None:
    table = table_of(
        *(kernel("distributed_cg", rate, processes=count) for count, rate in ((1, 10.0), (2, 18.0), (4, 27.0))),
        publications=[paper],
    )
    gains = [(setting, value) for what, setting, value in own(table) if what.endswith("twice as many processes")]
    assert [setting for setting, _ in gains] == ["1 to 2 processes", "2 to 4 processes"]
    assert gains[0][1].startswith("1.80× (")
    assert gains[1][1].startswith("1.50× (")
    assert "K80, 4 to 8 GPUs, size 32768" in {row[2] for row in table.rows}


def test_each_runtime_has_its_own_row_at_its_fastest_width(paper: Publication) -> None:
    rates = {("torch", 1): 12.0, ("torch", 2): 20.0, ("numpy", 1): 11.0, ("numpy", 2): 10.0}
    records = [
        kernel("tiled_product", rate, gflop=10 * rate, threads=threads, runtime=runtime)
        for (runtime, threads), rate in rates.items()
    ]
    found = [
        (setting, value) for what, setting, value in own(table_of(*records, publications=[paper])) if what == "rate"
    ]
    assert found == [("1 thread and runtime numpy", "110.0 Gflop/s"), ("2 threads and runtime torch", "200.0 Gflop/s")]


def test_memory_traffic_has_the_unit_of_the_network_and_is_marked_as_different(paper: Publication) -> None:
    records = [
        kernel("stream", rate, gbyte=rate, threads=2, **{"args.operation": operation})
        for operation, rate in (("copy", 21.5), ("add", 22.5))
    ]
    table = table_of(*records, publications=[paper])
    assert [value for _, _, value in own(table)] == ["22,500 MB/s", "21,500 MB/s"]
    assert {what for what, _, _ in own(table)} == {"bytes moved in memory"}
    assert "over a network to another node; yours stay in the memory of one" in table.caption
    assert ("RDMA with K80 memory", "below 2,300 MB/s") in {(row[2], row[3]) for row in table.rows}


def test_a_doubling_within_the_noise_is_not_passed_off_as_a_gain(paper: Publication) -> None:
    records = [
        trial(rates, params={"workload": "fft", "mode": "infer", "threads": threads}, metrics={"gbyte_per_s": 1.0})
        for threads, rates in ((1, [10.0, 14.0, 9.0]), (2, [11.0, 13.0, 10.0]))
    ]
    [(_, _, value), *_] = own(table_of(*records, publications=[paper]))
    assert value.endswith(", no significant difference")


def test_no_figure_of_kernels_is_made_up_for_a_model() -> None:
    figure = {
        "key": "gain", "what": "throughput with twice as many GPUs", "quantity": "ratio",
        "values": [{"value": 1.5}],
    }  # fmt: skip
    publication = Publication.model_validate(
        {"title": "A paper", "authors": ["Ada Lovelace"], "year": 1984, "figures": [figure]}
    )
    records = [trial(10.0 * threads, params={"threads": threads}) for threads in (1, 2)]
    table = table_of(*records, publications=[publication])
    assert own(table) == []
    assert "different quantities" not in table.caption


def test_of_messages_the_largest_pushes_stand_next_to_the_published_ones(paper: Publication) -> None:
    def message(operation: str, size_bytes: int, gbyte: float) -> Record:
        params = {"workload": "communication", "args.operation": operation, "args.size_bytes": size_bytes}
        metrics = {"gbyte_per_s": gbyte, "latency_s": 1e-3, "bus_gbyte_per_s": gbyte}
        return trial(1e9 / size_bytes, params={"mode": "infer", "batch": 1, **params}, metrics=metrics)

    table = table_of(
        message("push_add", 1024, 0.01),
        message("push_add", 2**26, 1.5),
        message("allreduce", 2**26, 4.0),
        publications=[paper],
    )
    assert {(what, value) for what, _, value in own(table)} == {
        ("bandwidth of messages", "1,500 MB/s"),
        ("bandwidth of messages", "10.00 MB/s"),
    }
    assert "RDMA with host memory (half of the theoretical 12000)" in {row[2] for row in table.rows}
