"""Convolution problems in benchdnn's notation: parsing, deduced values, work and output."""

import itertools
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from corewise.launch.worker_archive import build_worker
from corewise.measured.workloads.primitives.convolution import CONVOLUTION, count_moved_bytes
from corewise.measured.workloads.primitives.convolution_problem import ConvolutionProblem, Dimension, parse_convolution
from corewise.measured.workloads.primitives.problem_notation import ProblemError
from corewise.measured.workloads.primitives.shipped_problems import load_shipped_problems, resolve_problem_text

PAPERS = "pytorch-cpus"


def test_missing_entries_are_deduced_as_documented() -> None:
    problem = parse_convolution("ic16ih10oc32kh3")
    assert problem == ConvolutionProblem(2, 16, 32, (Dimension(10, 8, 3), Dimension(10, 8, 3)))


def test_a_missing_padding_makes_the_output_fit() -> None:
    assert parse_convolution("ic1ih28oc1oh28kh3").dimensions[0].padding == 1
    strided = parse_convolution("ic1ih224oc1oh112kh7sh2").dimensions[0]
    assert (strided.padding, strided.padding_after, strided.pads_evenly) == (2, 3, False)


def test_a_stride_may_leave_elements_over() -> None:
    left_over = parse_convolution("ic1ih56oc1oh28kh1sh2").dimensions[0]
    assert (left_over.padding, left_over.pads_evenly) == (0, True)


@pytest.mark.parametrize(
    ("text", "num_dimensions"),
    [("ic1iw5oc1kw3", 1), ("ic1ih5oc1kh3", 2), ("ic1ih5iw6oc1kh3kw2", 2), ("ic1id5oc1kd3", 3)],
)
def test_the_highest_dimension_given_decides_how_many_there_are(text: str, num_dimensions: int) -> None:
    assert len(parse_convolution(text).dimensions) == num_dimensions


def test_underscores_and_names_are_read_as_benchdnn_reads_them() -> None:
    plain = parse_convolution("ic3ih227oc96oh55kh11sh4ph0")
    named = parse_convolution('ic3ih227iw227_oc96oh55ow55_kh11kw11_sh4sw4ph0pw0_n"alexnet:conv1"')
    assert named.name == "alexnet:conv1"
    assert (named.dimensions, named.ic, named.oc) == (plain.dimensions, plain.ic, plain.oc)
    assert parse_convolution("ic1ih5oc1kh3nfirst").name == "first"
    assert parse_convolution("ic1ih5oc1kh3n").name == ""


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("mb2xc3ih5", 3, "unknown entry 'xc'"),
        ("mb2ic3ih5oc4kh3zh1", 15, "unknown entry 'zh'; valid: g, mb"),
        ("mbb2ic3ih5oc4kh3", 2, "mb must be followed by a whole number"),
        ("mb2icc3ih5oc4kh3", 5, "ic must be followed by a whole number"),
        ("m2ic3ih5oc4kh3", 0, "unknown entry 'm'; did you mean 'mb'?"),
        ("mb2ic3ih", 8, "ih must be followed by a whole number"),
        ("ic3ih-5oc4kh3", 5, "ih must be followed by a whole number"),
        ("ic3ih5oc4kh3 ", 12, "' ' is not an entry"),
        ("ic0ih5oc4kh3", 0, "ic must be at least 1"),
        ("ih5oc4kh3", 9, "ic is missing"),
        ("ic3ih5oc4", 9, "kh is missing"),
        ("ic3oc4", 6, "no spatial dimension"),
        ("ic3ih5oc4kh3sh0", 12, "sh must be at least 1"),
        ("ic3ih5oc4kh3ih6", 12, "ih is given twice, as 5 and 6"),
        ("g2ic3ih5oc4kh3", 2, "ic3 is not a multiple of g2"),
        ("ic3ih5oc4kh7", 9, "kernel of 7 does not fit ih5"),
        ("ic3id5ih5oc4kd3kh3", 15, "both h and w, or neither"),
        ('ic3ih5oc4kh3n"a b"', 15, "must not contain spaces"),
    ],
)
def test_an_error_points_at_the_mistake(text: str, place: int, message: str) -> None:
    with pytest.raises(ProblemError) as met:
        parse_convolution(text)
    first_line, shown, caret = str(met.value).split("\n")
    assert message in first_line
    assert shown == f"  {text}"
    assert caret.index("^") - 2 == place


@pytest.mark.parametrize("text", ["ic1ih224oc1oh113kh7sh2ph3", "ic1ih50oc1oh10kh3"])
def test_a_contradiction_names_both_numbers(text: str) -> None:
    with pytest.raises(ProblemError) as met:
        parse_convolution(text)
    first_line = str(met.value)
    output, source = (text[text.index(entry) :] for entry in ("oh", "ih"))
    assert output[: 2 + len(output[2:].split("k")[0])] in first_line
    assert source[: source.index("o")] in first_line


@st.composite
def problems(draw: st.DrawFn) -> str:
    """A string that may give, leave out or contradict what it can."""
    g = draw(st.integers(1, 3))
    axes = draw(st.sampled_from(["w", "h", "hw", "d", "dhw"]))
    text = f"g{g}mb{draw(st.integers(1, 4))}ic{g * draw(st.integers(1, 4))}oc{g * draw(st.integers(1, 4))}"
    for axis in axes:
        text += f"i{axis}{draw(st.integers(1, 20))}k{axis}{draw(st.integers(1, 5))}"
        for role, least, most in (("o", 1, 20), ("s", 1, 3), ("p", 0, 3), ("d", 0, 2)):
            if draw(st.booleans()):
                text += f"{role}{axis}{draw(st.integers(least, most))}"
    return text + draw(st.sampled_from(["", "n", "nsome", 'n"a:b"']))


@given(problems())
def test_every_problem_survives_being_written_and_read_again(text: str) -> None:
    try:
        problem = parse_convolution(text)
    except ProblemError:
        assume(False)
    assert parse_convolution(str(problem)) == problem
    assert str(parse_convolution(str(problem))) == str(problem)


@given(problems())
def test_products_are_counted_one_by_one(text: str) -> None:
    try:
        problem = parse_convolution(text)
    except ProblemError:
        assume(False)
    counted = 1
    for d in problem.dimensions:
        met = itertools.product(range(d.destination), range(d.kernel))
        counted *= sum(0 <= d.find_source_index(at, tap) < d.source for at, tap in met)
    assert problem.flops == 2 * problem.mb * problem.oc * problem.ic // problem.g * counted
    for d in problem.dimensions:
        assert d.destination == (d.source + d.padding + d.padding_after - d.reach) // d.stride + 1


@given(st.text(alphabet='gmbicohwkspdn0123456789_x" ', max_size=30))
def test_any_text_is_read_or_refused_with_a_reason(text: str) -> None:
    try:
        first_line = str(parse_convolution(text))
    except ProblemError as met:
        first_line = str(met)
    assert first_line


def test_the_published_problems_are_those_of_table_3() -> None:
    problems = [parse_convolution(text) for text in load_shipped_problems(PAPERS)]
    assert len(problems) == 20
    assert all(problem.mb == 256 and problem.g == 1 for problem in problems)
    # benchdnn counts 59.5018 Gflop for the first and 26.3067 for the second.
    assert [round(problem.flops / 1e9, 4) for problem in problems[:2]] == [59.5018, 26.3067]
    assert sum(problem.dimensions[0].kernel == 1 for problem in problems) == 12


def test_a_published_problem_is_found_by_number() -> None:
    assert resolve_problem_text(f"{PAPERS}:7") == "mb256ic128ih28oc512oh28kh1ph0n"
    assert resolve_problem_text(" ic1ih5oc1kh3 ") == "ic1ih5oc1kh3"
    with pytest.raises(ProblemError, match="1 to 20, not 21"):
        resolve_problem_text(f"{PAPERS}:21")
    with pytest.raises(ProblemError, match="1 to 20, not 'x'"):
        resolve_problem_text(f"{PAPERS}:x")
    with pytest.raises(ProblemError, match=r"'papers'.*pytorch-cpus"):
        resolve_problem_text("papers:1")


def test_the_published_problems_travel_with_the_worker(tmp_path: Path) -> None:
    code = (
        "from corewise.measured.workloads.primitives import shipped_problems as shipped\n"
        f"print(shipped.__file__, shipped.resolve_problem_text('{PAPERS}:20'))"
    )
    worker = build_worker(tmp_path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(worker)}, capture_output=True, text=True, check=True
    )
    file, problem = done.stdout.split()
    assert file.startswith(str(worker))
    assert problem == load_shipped_problems(PAPERS)[19]


def test_bytes_are_those_of_the_tensors_of_the_direction() -> None:
    problem = parse_convolution("mb2ic4ih5oc6kh3ph1")
    tensors = 2 * 4 * 25 + 6 * 4 * 9 + 2 * 6 * 25
    assert (
        count_moved_bytes(problem, "FWD_I", "float32") == count_moved_bytes(problem, "BWD_D", "float32") == 4 * tensors
    )
    assert count_moved_bytes(problem, "FWD_B", "float32") == 4 * (tensors + 6)
    assert count_moved_bytes(problem, "BWD_WB", "bfloat16") == 2 * (tensors + 6)
    assert count_moved_bytes(problem, "FWD_B", "int8") == tensors + 4 * 6


def test_the_minibatch_can_be_set_independently_of_the_problem() -> None:
    args = {"problem": f"{PAPERS}:3", "mb": 2}
    assert CONVOLUTION.read_arguments(args).problem.mb == 2
    assert (
        CONVOLUTION.count_work("infer", args).flops_per_sample * 128
        == CONVOLUTION.count_work("infer", {"problem": f"{PAPERS}:3"}).flops_per_sample
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"direction": "FWD"}, "did you mean 'FWD_"),
        ({"direction": "fwd_b"}, "did you mean 'FWD_B'"),
        ({"reorders": "yes"}, "included, excluded"),
        ({"problems": "ic1"}, "did you mean 'problem'"),
        ({"mb": -1}, "mb must be a whole number"),
        ({"problem": "ic3q5"}, "unknown entry 'q'"),
    ],
)
def test_invalid_arguments_are_refused_with_the_valid_ones(args: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CONVOLUTION.count_work("infer", args)


@given(
    *(st.integers(1, 14), st.integers(1, 20), st.integers(1, 9), st.integers(1, 5)),
    *(st.integers(0, 15), st.integers(0, 4)),
)
def test_products_are_counted_as_by_enumeration(
    source: int, destination: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    d = Dimension(source, destination, kernel, stride, padding, dilation)
    pairs = itertools.product(range(destination), range(kernel))
    assert d.num_products == sum(0 <= d.find_source_index(*pair) < source for pair in pairs)


def test_huge_problems_are_counted_quickly() -> None:
    assert parse_convolution("mb1ic1ih1000000000oc1kh1000000000").flops == 2e18


def test_thousands_of_digits_are_pointed_at() -> None:
    for text, place in (("ic1ih5oc" + "9" * 5000 + "kh3", 8), ("ic1ih" + "9" * 14 + "oc1kh3", 5)):
        with pytest.raises(ProblemError, match="is larger than any memory") as met:
            parse_convolution(text)
        first_line = str(met.value)
        assert len(first_line) < 300
        assert first_line.split("\n")[2].index("^") - 2 == place
    with pytest.raises(ProblemError, match="a number of 5000 digits is larger than any memory"):
        resolve_problem_text("pytorch-cpus:" + "9" * 5000)
    with pytest.raises(ValueError, match="mb is larger than any memory"):
        CONVOLUTION.read_arguments({"mb": 10**5000})
    assert parse_convolution("ic1ih5oc" + "0" * 5000 + "2kh3").oc == 2


def test_a_mistake_far_into_a_long_text_is_still_under_the_caret() -> None:
    with pytest.raises(ProblemError) as met:
        parse_convolution("_" * 500 + "ic3zz5" + "_" * 500)
    _, shown, caret = str(met.value).split("\n")
    assert shown[caret.index("^")] == "z"
    assert len(shown) < 150


def test_padding_larger_than_the_kernel_is_deduced_as_benchdnn_does() -> None:
    (height, width) = parse_convolution("ic3ih5oc4oh9kh3").dimensions
    assert height == width == Dimension(5, 9, 3, 1, padding=3)
    assert parse_convolution("ic3ih5oc4oh30kh3").dimensions[0].padding == 13
    # benchdnn counts 1.08e-05 Gop for both.
    assert [parse_convolution(f"ic3ih5oc4oh{oh}kh3").flops for oh in (9, 30)] == [10_800, 10_800]


def test_a_stride_of_one_does_not_define_a_dimension() -> None:
    height, width = parse_convolution("ic3ih9oc4kh3sh2sw1").dimensions
    assert height == width
