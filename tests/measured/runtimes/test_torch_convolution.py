"""Convolutions on torch: results in every direction, reorders of oneDNN, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, MissingPart, RankContext
from corewise.measured.runtimes.torch.primitives.convolution import prepare_convolution
from corewise.measured.runtimes.torch.primitives.onednn_calls import parse_calls, record_onednn_calls
from corewise.measured.workloads.primitives.convolution import DIRECTIONS
from corewise.measured.workloads.primitives.convolution_problem import parse_convolution
from corewise.measured.workloads.primitives.convolution_reference import compute_int8_error, find_largest_error

pytestmark = pytest.mark.torch
Params = Callable[..., TrialParameters]
PROBLEM = "mb2g2ic8ih9iw7oc12kh3kw2sh2ph1"
LAID_OUT = [
    ("contiguous", "included"),
    ("channels_last", "included"),
    ("channels_last", "excluded"),
    ("blocked", "included"),
    ("blocked", "excluded"),
]


@pytest.fixture
def job(params: Params, alone: RankContext) -> Callable[..., Any]:
    def made(**values: Any) -> Any:
        values.setdefault("problem", PROBLEM)
        return prepare_convolution(params(workload="convolution", **values), alone)

    return made


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("memory_format", "reorders"), LAID_OUT)
def test_every_direction_and_layout_gives_the_right_numbers(
    job: Callable[..., Any], direction: str, memory_format: str, reorders: str
) -> None:
    made = job(direction=direction, memory_format=memory_format, reorders=reorders)
    check = made.check()
    made.step()
    made.close()
    assert check.passed
    assert 0 < check.error < 1e-5


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_WB"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_other_formats_give_the_right_numbers(job: Callable[..., Any], direction: str, dtype: str) -> None:
    check = job(direction=direction, dtype=dtype).check()
    assert check.passed
    assert check.error < (1e-13 if dtype == "float64" else 0.05)


@pytest.mark.parametrize(
    "problem", ["ic3ih5oc4oh9kh3", "ic3iw9oc5kw3sw2pw1", "ic3id5oc4kd3", "ic4ih6oc4kh3dh1ph2", "ic3ih8oc5kh1"]
)
@pytest.mark.parametrize("direction", ["FWD_I", "BWD_D", "BWD_WB"])
def test_one_two_and_three_dimensions_are_computed(job: Callable[..., Any], problem: str, direction: str) -> None:
    assert job(problem=problem, direction=direction).check().passed


@pytest.mark.parametrize("direction", ["FWD_B", "FWD_I"])
@pytest.mark.parametrize(("memory_format", "reorders"), LAID_OUT[:3])
def test_whole_numbers_are_exact(job: Callable[..., Any], direction: str, memory_format: str, reorders: str) -> None:
    made = job(dtype="int8", direction=direction, memory_format=memory_format, reorders=reorders)
    check = made.check()
    assert (check.error, check.tolerance) == (0.0, 0.0)
    assert made.read_facts()["types"] == "u8s8s8"


@pytest.mark.parametrize("result", ["dst", "diff_src", "diff_wei", "diff_bia"])
def test_the_reference_agrees_with_torch_in_float64_and_sees_one_wrong_element(result: str) -> None:
    problem = parse_convolution("mb2g2ic4ih5iw6oc6kh3kw2sh2ph1dw1")
    random = np.random.default_rng(3)
    given = {
        "src": random.normal(size=problem.source_shape),
        "wei": random.normal(size=problem.weights_shape),
        "bia": random.normal(size=problem.oc),
        "diff_dst": random.normal(size=problem.destination_shape),
    }
    src, wei, bia = (torch.from_numpy(given[name]).requires_grad_() for name in ("src", "wei", "bia"))
    dims = problem.dimensions
    dst = torch.nn.functional.conv2d(
        src, wei, bia, [d.stride for d in dims], [d.padding for d in dims], [d.dilation + 1 for d in dims], 2
    )
    dst.backward(torch.from_numpy(given["diff_dst"]))
    computed = {"dst": dst, "diff_src": src.grad, "diff_wei": wei.grad, "diff_bia": bia.grad}[result]
    values = computed.detach().numpy().copy()
    assert find_largest_error(problem, result, given, values, seed=1) < 1e-14
    values.flat[values.size // 2] += 0.1
    assert find_largest_error(problem, result, given, values, seed=1) > 1e-3
    values.flat[0] = np.nan
    assert np.isnan(find_largest_error(problem, result, given, values, seed=1))


def test_the_exact_reference_sees_a_whole_number_that_is_off_by_one() -> None:
    problem = parse_convolution("mb1ic2ih4oc3kh3")
    random = np.random.default_rng(4)
    given = {
        "src": random.integers(0, 256, problem.source_shape).astype(np.uint8),
        "wei": random.integers(-64, 65, problem.weights_shape).astype(np.int8),
        "bia": None,
    }
    exact = torch.nn.functional.conv2d(*(torch.from_numpy(given[n]).double() for n in ("src", "wei")))
    values = torch.round(exact / 256).clamp(-128, 127).to(torch.int8).numpy()
    assert compute_int8_error(problem, given, values, 256.0, seed=0) == 0
    values.flat[5] += 1 if values.flat[5] < 127 else -1
    assert compute_int8_error(problem, given, values, 256.0, seed=0) == 1


def test_the_kernel_alone_reorders_nothing_where_plain_tensors_are_reordered(
    job: Callable[..., Any], need: Callable[[bool, str], None]
) -> None:
    facts = {}
    for memory_format, reorders in (("contiguous", "included"), ("channels_last", "excluded")):
        made = job(problem="mb2ic32ih8oc32kh3ph1", memory_format=memory_format, reorders=reorders)
        made.check()
        facts[reorders] = made.read_facts()
    need("num_onednn_reorders" in facts["included"], "oneDNN with its verbose mode in torch")
    assert facts["excluded"]["num_onednn_reorders"] == 0
    assert facts["included"]["num_onednn_reordered"] >= 2 * 32 * 64
    assert facts["excluded"]["onednn_kernels"][0].startswith("convolution ")


def test_onednn_output_is_captured_and_stdout_restored(
    capfd: pytest.CaptureFixture[str], need: Callable[[bool, str], None]
) -> None:
    a = torch.randn(2, 16, 5, 5)
    calls = record_onednn_calls(lambda: torch.nn.functional.conv2d(a, torch.randn(16, 16, 3, 3)))
    need(bool(calls), "oneDNN with its verbose mode in torch")
    print("still printed", flush=True)
    assert capfd.readouterr().out == "still printed\n"
    assert "convolution" in {call.primitive for call in calls}


def test_lines_of_older_and_newer_versions_are_read() -> None:
    lines = [
        "onednn_verbose,info,oneDNN v3.2",
        "onednn_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:abcd:f0,,,2x16x5x5,0.01",
        "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_training,src:f32,a,b,mb2_ic16,0.5",
        "something else",
    ]
    calls = list(parse_calls(lines))
    assert [(call.primitive, call.implementation) for call in calls] == [
        ("reorder", "jit:uni"),
        ("convolution", "jit:avx2"),
    ]
    assert [call.num_elements for call in calls] == [800, 0]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"reorders": "excluded"}, "with contiguous tensors the operator itself reorders"),
        ({"dtype": "int8", "direction": "BWD_D"}, "int8 is forward only"),
        ({"int8_source": "s8"}, "has no effect: dtype is float32"),
        ({"dtype": "int8", "memory_format": "blocked"}, "not int8"),
        (
            {"dtype": "bfloat16", "memory_format": "blocked", "direction": "FWD_B"},
            "use direction FWD_I|this CPU lacks the instructions",
        ),
        ({"problem": "ic1iw9oc1kw3", "memory_format": "channels_last"}, "only for problems with height and width"),
        ({"problem": "ic1iw9oc1kw3", "dtype": "int8"}, "only problems with height and width"),
        ({"problem": "ic1ih224oc1oh112kh7sh2"}, "2 before and 3 after"),
        ({"batch": 4}, "the problem defines the minibatch"),
        ({"execution": "script"}, "single operator"),
        ({"problem": "ic100000ih100000oc100000kh3"}, "minibatch of 1 needs .* not fit either; .* reduce"),
        ({"problem": "mb4000000ic512ih200oc512kh1"}, "largest minibatch that fits is [0-9]+: set args.mb to"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_reason(
    job: Callable[..., Any], values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        job(**values)


def test_a_signed_source_is_exact_or_said_to_be_missing(job: Callable[..., Any]) -> None:
    try:
        made = job(dtype="int8", int8_source="s8")
    except Infeasible as reason:
        message = str(reason)
    else:
        message = "s8s8s8" if made.check().error == 0 else ""
    assert "s8s8s8" in message


def test_figures_of_benchdnn_are_among_the_facts(job: Callable[..., Any], tmp_path: Any) -> None:
    program = tmp_path / "benchdnn"
    program.write_text(
        "#!/bin/sh\n"
        "echo 'Template entries: perf,%engine%,%impl%,%name%,%prb%,%Gops%,%-time%,%-Gflops%,%0time%'\n"
        'echo "perf,cpu,jit:test,,$*,2,4,500,5"\n'
    )
    program.chmod(0o755)
    made = job(benchdnn=str(program))
    made.check()
    facts = made.read_facts()
    assert (facts["benchdnn_kernel"], facts["benchdnn_min_s"], facts["benchdnn_avg_s"]) == ("jit:test", 0.004, 0.005)
    with pytest.raises(MissingPart, match=r"program .* does not exist"):
        job(benchdnn=str(tmp_path / "none")).check()


@pytest.mark.parametrize("direction", ["FWD_B", "FWD_D", "FWD_I"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last", "blocked"])
def test_forward_steps_record_nothing_for_a_backward_pass(
    job: Callable[..., Any], direction: str, memory_format: str
) -> None:
    result = job(direction=direction, memory_format=memory_format).step()
    assert not result.requires_grad


@pytest.mark.parametrize(("known", "kernel"), [("dt", "--dt=f32"), ("cfg", "--cfg=f32")])
def test_old_and_new_benchdnn_get_the_dtypes(job: Callable[..., Any], tmp_path: Any, known: str, kernel: str) -> None:
    program = tmp_path / "benchdnn"
    program.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do case "$word" in\n'
        f"  --{known}=*) kernel=$word;;\n"
        "  --dt=*|--cfg=*) echo \"driver: ERROR: unknown option: conv '$word'\" >&2; exit 2;;\n"
        "esac; done\n"
        "echo 'Output template: perf,%engine%,%impl%,%name%,%prb%,%Gops%,%-time%,%0time%'\n"
        'echo "perf,cpu,$kernel,,ic1,2,4,5"\n'
    )
    program.chmod(0o755)
    made = job(benchdnn=str(program))
    made.check()
    assert made.read_facts()["benchdnn_kernel"] == kernel
