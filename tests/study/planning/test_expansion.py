import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from corewise.errors import UserError
from corewise.measured.workloads.base import Work, Workload
from corewise.study.axes import AXES
from corewise.study.planning.expansion import Expansion, MachineView, expand_study
from corewise.study.study import load_study

MACHINE = MachineView(
    num_cores=4,
    num_cpus=8,
    num_numa_nodes=2,
    num_sockets=1,
    has_cuda=False,
    libraries=frozenset({"libgomp"}),
    memory_bytes=1 << 34,
)


@dataclass(frozen=True)
class SampleWorkload(Workload):
    name: str
    summary: str = "a made-up workload"
    modes: tuple[str, ...] = ("train", "infer")
    runtimes: tuple[str, ...] = ("torch",)
    concurrent: bool = False
    defaults: Mapping[str, Any] = field(default_factory=lambda: {"size": 8, "rate": 0.5, "kind": "plain"})

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.defaults

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: str | None = None) -> Work:
        return Work(1.0, 1.0, 1)


WORKLOADS = {
    "toy": SampleWorkload("toy"),
    "other": SampleWorkload("other", modes=("infer",)),
    "sized": SampleWorkload("sized", defaults={"size": 8}),
    "bare": SampleWorkload("bare", defaults={}),
}


def find(name: str) -> SampleWorkload:
    if name not in WORKLOADS:
        raise LookupError(f"unknown workload {name!r}; did you mean 'toy'?")
    return WORKLOADS[name]


def expand_text(folder: Path, text: str, *overrides: str, machine: MachineView = MACHINE) -> Expansion:
    path = folder / "study.yaml"
    path.write_text(text)
    return expand_study(load_study(path, list(overrides)), machine, find_workload=find)


def list_rows(expansion: Expansion, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(point.params[name] for name in names) for point in expansion.points]


def test_every_parameter_is_present_and_json(tmp_path: Path) -> None:
    (point,) = expand_text(tmp_path, "workload: toy\n").points
    expected = ["workload", "mode", "runtime", *AXES, "args.kind", "args.rate", "args.size"]
    assert list(point.params) == expected
    assert json.loads(json.dumps(point.params)) == point.params


def test_defaults_fill_the_allocation_with_one_process(tmp_path: Path) -> None:
    (point,) = expand_text(tmp_path, "workload: toy\n").points
    chosen = ("processes", "threads", "interop_threads", "batch", "batch_scope", "dtype", "bind", "placement", "smt")
    assert [point.params[n] for n in chosen] == [1, 4, None, 16, "process", "float32", "rank", "compact", False]


def test_threads_left_out_share_the_allocation_among_processes(tmp_path: Path) -> None:
    expansion = expand_text(tmp_path, "workload: toy\naxes: {processes: [1, 2, 3, 4]}\n")
    assert list_rows(expansion, "processes", "threads") == [(1, 4), (2, 2), (3, 1), (4, 1)]


def test_the_product_follows_the_order_of_the_file(tmp_path: Path) -> None:
    text = "workload: [toy, other]\nmode: infer\naxes: {threads: [2, 1], batch: [8, 4]}\n"
    assert list_rows(expand_text(tmp_path, text), "workload", "threads", "batch") == [
        ("toy", 2, 8),
        ("toy", 2, 4),
        ("toy", 1, 8),
        ("toy", 1, 4),
        ("other", 2, 8),
        ("other", 2, 4),
        ("other", 1, 8),
        ("other", 1, 4),
    ]
    text = "workload: toy\naxes: {batch: [8, 4], threads: [2, 1]}\n"
    assert list_rows(expand_text(tmp_path, text), "batch", "threads") == [(8, 2), (8, 1), (4, 2), (4, 1)]


def test_keywords_follow_smt_and_reserved_cores_wherever_they_stand(tmp_path: Path) -> None:
    text = "workload: toy\naxes: {threads: allocation, smt: [false, true], reserved_cores: [0, 1]}\n"
    assert list_rows(expand_text(tmp_path, text), "threads", "smt", "reserved_cores") == [
        (4, False, 0),
        (3, False, 1),
        (8, True, 0),
        (6, True, 1),
    ]
    text = "workload: toy\naxes: {smt: [false, true], threads: powers-of-two}\n"
    result = list_rows(expand_text(tmp_path, text), "smt", "threads")
    assert result == [(False, n) for n in (1, 2, 4)] + [(True, n) for n in (1, 2, 4, 8)]


def test_equal_points_are_taken_once(tmp_path: Path) -> None:
    text = "workload: [toy, toy]\naxes: {threads: [1, powers-of-two, allocation, '= 2 * 2', 4]}\n"
    assert list_rows(expand_text(tmp_path, text), "threads") == [(1,), (2,), (4,)]


def test_true_and_one_are_two_values_of_a_workloads_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    text = "workload: mine.py:make\naxes: {args.x: [1, true, 1.0]}\n"
    assert [type(x) for (x,) in list_rows(expand_text(tmp_path, text), "args.x")] == [int, bool, float]


def test_expressions_may_need_each_other(tmp_path: Path) -> None:
    text = (
        "workload: toy\n"
        "axes: {batch: '= 8 * threads', threads: '= allocation // processes', processes: [1, 2]}\n"
        "fixed: {args.size: '= batch / 2'}\n"
    )
    assert list_rows(expand_text(tmp_path, text), "processes", "threads", "batch", "args.size") == [
        (1, 4, 32, 16),
        (2, 2, 16, 8),
    ]


def test_expressions_and_constraints_know_the_machine(tmp_path: Path) -> None:
    text = "workload: toy\naxes: {batch: '= cores * 1000 + cpus * 100 + numa_nodes * 10 + sockets', threads: [1, 2]}\n"
    expansion = expand_text(tmp_path, text + "constraints: ['threads < sockets + 1', mode == 'infer']\n")
    assert list_rows(expansion, "batch", "threads") == [(4821, 1)]


def test_an_expression_without_a_value_skips_the_point_with_the_reason(tmp_path: Path) -> None:
    text = "workload: toy\naxes: {loader_workers: [0, 1], batch: '= 8 // loader_workers', data: [.]}\n"
    expansion = expand_text(tmp_path, text)
    assert list_rows(expansion, "loader_workers", "batch") == [(1, 8)]
    (skipped,) = expansion.skipped
    assert skipped.reason == "batch: '8 // loader_workers' has no value: division by zero (loader_workers = 0)"
    assert skipped.params["batch"] == "= 8 // loader_workers"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("threads - 4", "batch must be at least 1, not 0 (from '= threads - 4')"),
        ("threads / 3", "batch needs a whole number, not 1.333"),
        ("threads > 3", "batch needs a whole number, not True"),
        ("dtype + 1", "'float32' is not a number"),
        ("args.nothing", "args.nothing is not set here"),
        ("1e308 * 10", "batch must be finite"),
    ],
)
def test_an_expression_with_an_impossible_value_skips_the_point(tmp_path: Path, expression: str, reason: str) -> None:
    (skipped,) = expand_text(tmp_path, f'workload: toy\nfixed: {{batch: "= {expression}"}}\n').skipped
    assert reason in skipped.reason


def test_constraints_exclude_and_do_not_skip(tmp_path: Path) -> None:
    text = (
        "workload: toy\naxes: {processes: all-factorisations, threads: all-factorisations}\n"
        "constraints: [processes * threads == allocation]\n"
    )
    expansion = expand_text(tmp_path, text)
    assert list_rows(expansion, "processes", "threads") == [(1, 4), (2, 2), (4, 1)]
    assert expansion.skipped == ()
    assert expansion.num_excluded == 6


def test_a_constraint_that_cannot_be_decided_skips_the_point(tmp_path: Path) -> None:
    text = "workload: toy\naxes: {interop_threads: [null, 2]}\nconstraints: [interop_threads < 4]\n"
    expansion = expand_text(tmp_path, text)
    reasons = [skipped.reason for skipped in expansion.skipped]
    assert reasons[0].startswith(f"constraint ({tmp_path}/study.yaml:3): 'interop_threads < 4' has no value: ")
    assert reasons[1].startswith("interop_threads has no effect")


def test_infeasible_points_are_skipped_with_the_reason(tmp_path: Path) -> None:
    expansion = expand_text(tmp_path, "workload: [toy, other]\nmode: [train, infer]\naxes: {threads: [4, 5]}\n")
    assert list_rows(expansion, "workload", "mode", "threads") == [
        ("toy", "train", 4),
        ("toy", "infer", 4),
        ("other", "infer", 4),
    ]
    assert [
        (s.params["workload"], s.params["mode"], s.params["threads"], s.reason[:28]) for s in expansion.skipped
    ] == [
        ("toy", "train", 5, "1 process × 5 threads need 5"),
        ("toy", "infer", 5, "1 process × 5 threads need 5"),
        ("other", "train", 4, "other has no mode train; it "),
        ("other", "train", 5, "other has no mode train; it "),
        ("other", "infer", 5, "1 process × 5 threads need 5"),
    ]


def test_a_study_of_skipped_points_only_is_still_a_study(tmp_path: Path) -> None:
    expansion = expand_text(tmp_path, "workload: toy\nfixed: {threads: 5}\n")
    assert expansion.points == ()
    assert len(expansion.skipped) == 1


def test_too_many_reserved_cores_skip_the_points(tmp_path: Path) -> None:
    expansion = expand_text(tmp_path, "workload: toy\naxes: {reserved_cores: [1, 4], threads: powers-of-two}\n")
    assert list_rows(expansion, "reserved_cores", "threads") == [(1, 1), (1, 2), (1, 3)]
    assert [s.reason for s in expansion.skipped] == ["reserved_cores 4 leaves none of the allocation's 4 cores"]


def test_a_study_without_points_names_the_constraint_that_excluded_them(tmp_path: Path) -> None:
    text = "workload: toy\naxes: {threads: [1, 2, 3]}\nconstraints:\n  - threads > 1\n  - threads == 8\n"
    with pytest.raises(UserError) as caught:
        expand_text(tmp_path, text)
    file = f"{tmp_path}/study.yaml"
    assert str(caught.value).splitlines() == [
        f"{file}: none of the study's 3 points meets its constraints:",
        f"  {file}:5: 3 fail 'threads == 8'",
        f"  {file}:4: 1 fail 'threads > 1'",
        "The allocation has 4 cores, 8 CPUs; give the axes other values or loosen a constraint.",
    ]


def test_a_product_beyond_reason_is_refused_before_it_is_made(tmp_path: Path) -> None:
    values = ", ".join(str(n) for n in range(1, 1001))
    with pytest.raises(UserError, match=r"make 3,000,000 points, more than 100,000; .*batch 1000, args.size 1000"):
        expand_text(
            tmp_path, f"workload: toy\naxes: {{batch: [{values}], args.size: [{values}], threads: powers-of-two}}\n"
        )


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("mode: train\nworkload: [toy,\n  toi]", 3, "unknown workload 'toi'; did you mean 'toy'?"),
        ("workload: toy\naxes:\n  args.sise: [1]", 3, "toy has no parameter 'sise'; did you mean 'size'?"),
        ("workload: toy\nfixed:\n  args.size: big", 3, "args.size needs a value like 8, not 'big'"),
        ("workload: toy\nfixed:\n  args.size: true", 3, "args.size needs a value like 8, not True"),
        ("workload: toy\nfixed:\n  args.kind: 3", 3, "args.kind needs a value like 'plain', not 3"),
        ("workload: toy\nfixed:\n  data: nowhere", 3, "nowhere; use images, `synthetic` or `labelled`"),
    ],
)
def test_a_users_mistake_names_file_and_line(tmp_path: Path, text: str, line: int, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        expand_text(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/study.yaml:{line}: ")
    assert expected in str(caught.value)


def test_a_mistake_on_the_command_line_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--set args\.sise=3: toy has no parameter 'sise'"):
        expand_text(tmp_path, "workload: toy\n", "args.sise=3")


def test_a_parameter_counts_for_the_workloads_that_have_it(tmp_path: Path) -> None:
    text = (
        "workload: [toy, sized, bare]\naxes: {args.kind: [plain, rich]}\n"
        "fixed: {args.size: \"= workload == 'toy' and 3 or 4\", args.rate: = args.size / 2}\n"
    )
    expansion = expand_text(tmp_path, text)
    result = [
        {name: value for name, value in point.params.items() if name.startswith("args.")} for point in expansion.points
    ]
    assert result == [
        {"args.kind": "plain", "args.rate": 1.5, "args.size": 3},
        {"args.kind": "rich", "args.rate": 1.5, "args.size": 3},
        {"args.size": 4},
        {},
    ]


@pytest.mark.parametrize(
    ("workloads", "expected"),
    [
        ("[toy, sized]", "none of toy, sized has a parameter 'sise'; did you mean 'size'?"),
        ("bare", "bare has no parameter 'sise'; it has none"),
    ],
)
def test_a_parameter_that_no_workload_has_is_refused(tmp_path: Path, workloads: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        expand_text(tmp_path, f"workload: {workloads}\nfixed: {{args.sise: 1}}\n")
    assert str(caught.value) == f"{tmp_path}/study.yaml:2: {expected}"


def test_of_several_workloads_one_can_be_chosen_with_the_parameters_of_all_in_the_file(tmp_path: Path) -> None:
    text = "workload: [toy, sized, bare]\naxes: {args.kind: [plain, rich]}\n"
    assert list_rows(expand_text(tmp_path, text, "workload=sized"), "workload", "args.size") == [("sized", 8)]
    with pytest.raises(UserError, match=r"^--set args\.kind=plain: sized has no parameter 'kind'"):
        expand_text(tmp_path, text, "workload=sized", "args.kind=plain")


def test_a_workload_that_the_file_does_not_name_must_have_its_parameters(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sized has no parameter 'kind'"):
        expand_text(tmp_path, "workload: toy\nfixed: {args.kind: rich}\n", "workload=sized")


def test_an_argument_that_no_float_can_hold_skips_the_point(tmp_path: Path) -> None:
    nines = "9" * 200
    (skipped,) = expand_text(tmp_path, f'workload: toy\nfixed: {{args.size: "= {nines} * {nines}"}}\n').skipped
    assert skipped.reason.startswith("args.size must be finite; a float cannot hold the number that was given")


def test_a_whole_number_serves_where_a_fraction_is_the_default(tmp_path: Path) -> None:
    assert list_rows(expand_text(tmp_path, "workload: toy\nfixed: {args.rate: 1}\n"), "args.rate") == [(1,)]


def test_a_custom_workload_takes_any_arguments(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    expansion = expand_text(tmp_path, "workload: mine.py:make\nfixed: {args.anything: x, interop_threads: 2}\n")
    assert list_rows(expansion, "workload", "args.anything") == [(f"{tmp_path}/mine.py:make", "x")]


def test_hints_say_how_to_install_a_missing_library(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("workload: toy\nfixed: {allocator: tcmalloc}\n")
    hints = {"tcmalloc": "apt install it"}
    (skipped,) = expand_study(load_study(path), MACHINE, find_workload=find, hints=hints).skipped
    assert skipped.reason == "allocator: tcmalloc is not installed; apt install it"


def test_the_registry_is_asked_when_no_lookup_is_given(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("workload: resnet5\n")
    with pytest.raises(UserError, match=r"study\.yaml:1: unknown workload 'resnet5'; did you mean 'resnet50'\?"):
        expand_study(load_study(path), MACHINE)
