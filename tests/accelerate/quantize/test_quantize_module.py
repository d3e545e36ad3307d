"""Inference in int8: whole modules, their errors, and refusals."""

import contextlib
import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from corewise.accelerate.quantize.int8_layers import Int8Convolution, Int8Linear
from corewise.accelerate.quantize.layer_choice import measure_ratio
from corewise.accelerate.quantize.quantize_module import LARGEST_ERROR, compute_error, quantize, quantize_module
from corewise.accelerate.unsupported import Unsupported
from corewise.launch.code_settings import list_code_settings
from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.registry import find_runtime

Params = Callable[..., TrialParameters]


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def quantize_all(model: nn.Module, examples: Any) -> Any:
    """Quantize all layers that are exact enough, whatever their times."""
    return quantize_module(model, examples, is_measured=False)


@contextlib.contextmanager
def skip_if_busy() -> Iterator[None]:
    """Skip a test in which other load on the machine made int8 slower."""
    try:
        yield
    except (ValueError, Infeasible) as problem:
        if "faster" not in str(problem):
            raise
        pytest.skip(str(problem))


def find_function(layer: nn.Module) -> Any:
    return vars(layer).get("forward")


def compute_exact_error(model: nn.Module, made: nn.Module, *inputs: Any) -> float:
    """Return the relative error against the module in float64."""
    doubled = [each.double() if each.is_floating_point() else each for each in inputs]
    with torch.no_grad():
        exact, got = copy.deepcopy(model).double()(*doubled), made(*inputs)
    return float((got.double() - exact).norm() / exact.norm())


class Block(nn.Module):
    """A convolution with a norm, whose output a shortcut may read as well."""

    def __init__(self, *, reads_before_norm: bool = False) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5)
        self.norm: Any = nn.BatchNorm2d(8)
        self.reads_before_norm = reads_before_norm
        buffers = dict(self.norm.named_buffers())
        buffers["running_mean"].normal_()
        buffers["running_var"].uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        before = self.conv(x)
        after = self.norm(before).relu()
        if self.reads_before_norm:
            after = after + before
        return self.head(after.mean((2, 3)))


class Untraceable(Block):
    def forward(self, x: Any) -> Any:
        return super().forward(x if x.sum() > 0 else x + 1)


def test_convolutions_get_scales_beforehand_and_stay_close(params: Params, alone: RankContext) -> None:
    with skip_if_busy():
        job = prepare(params(workload="resnet18", dtype="int8", batch=2, image_size=64), alone)
    check = job.check()
    job.step()
    facts = job.read_facts()
    job.close()
    assert 1e-3 < check.error <= check.tolerance
    assert "static" in facts["int8_scales"]
    assert 0 < facts["num_int8_layers"] <= 21
    assert 0 < facts["int8_error"] < LARGEST_ERROR
    assert facts["int8_method"] in ("graph", "layers")


def test_linear_layers_are_scaled_as_they_run() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    made = quantize_all(module, [(torch.randn(16, 64),)])
    assert (made.scaling, made.num_layers, made.method, made.engine) == ("dynamic", 2, "layers", "onednn")
    assert 0 < made.error < 0.05
    assert 0 < compute_exact_error(module, made.module, torch.randn(5, 64)) < 0.05
    # A copy was quantized. It has the same classes and weights.
    assert find_function(module[0]) is None
    assert isinstance(made.module[0], nn.Linear)
    assert made.module.state_dict().keys() == module.state_dict().keys()
    assert made.module[0].weight.dtype == torch.float32


def test_lstms_are_quantized_by_torch() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 4)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    torch.manual_seed(0)
    model, x = Reader().eval(), torch.randn(3, 7, 16)
    made = quantize_all(model, [{"x": x}])
    assert (made.method, made.scaling, made.num_layers) == ("recurrent", "dynamic", 2)
    assert 0 < compute_exact_error(model, made.module, torch.randn(5, 9, 16)) < 0.05


def test_the_line_of_code_that_an_answer_prints_quantizes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Conv2d(128, 128, 3))
    batch = torch.randn(4, 64, 32, 32)
    names: dict[str, Any] = {"model": model, "batch": batch}
    with skip_if_busy():
        exec(list_code_settings({"dtype": "int8"})["dtype: int8"], names)
    assert 0 < compute_exact_error(model, names["model"], batch) < 0.05


def test_wrong_examples_raise() -> None:
    for examples in ((), (torch.randn(2, 2),), ([torch.randn(2, 2)],)):
        with pytest.raises(ValueError, match="pass the inputs of each step as a tuple, or as a mapping"):
            quantize(nn.Linear(2, 2), *examples)


def test_a_module_without_such_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="no convolution or linear layer"):
        quantize(nn.LayerNorm(4), (torch.randn(2, 4),))
    with pytest.raises(Unsupported, match="no convolution or linear layer"):
        quantize_module(nn.LayerNorm(4), [(torch.randn(2, 4),)])
    with pytest.raises(Unsupported, match=r"the module fails on the example: .*shapes cannot be multiplied"):
        quantize_module(nn.Linear(4, 4), [(torch.randn(2, 5),)])
    with pytest.raises(Unsupported, match="NaN"):
        quantize_module(nn.Linear(4, 4), [(torch.full((2, 4), float("nan")),)])


def test_small_layers_are_quantized_only_if_they_are_faster() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval()
    x = torch.randn(2, 4)
    with contextlib.suppress(Unsupported):
        made = quantize_module(model, [(x,)])
        assert made.num_layers + made.num_float_layers == 2
    assert quantize_all(model, [(x,)]).num_layers == 2


def test_modules_that_cannot_be_traced_are_quantized_by_layer() -> None:
    torch.manual_seed(0)
    model, x = Untraceable().eval(), torch.randn(4, 3, 16, 16)
    made = quantize_all(model, [(x,)])
    assert (made.method, made.num_layers, made.scaling) == ("layers", 2, "dynamic and static")
    assert 0 < compute_exact_error(model, made.module, x) < 0.05
    assert 0 < compute_exact_error(model, made.module, torch.randn(2, 3, 12, 16)) < 0.05


@pytest.mark.parametrize("reads_before_norm", [False, True])
def test_a_norm_is_folded_only_if_nothing_else_reads_its_input(reads_before_norm: bool) -> None:
    torch.manual_seed(0)
    model, x = Block(reads_before_norm=reads_before_norm).eval(), torch.randn(4, 3, 16, 16)
    made = quantize_all(model, [{"x": x}]).module
    assert (find_function(made.conv).norm is None) == reads_before_norm
    assert 0 < compute_exact_error(model, made, x) < 0.05
    # Statistics that change later have an effect.
    for each in (model, made):
        each.norm.running_mean.add_(0.3)
    assert 0 < compute_exact_error(model, made, x) < 0.05


def test_a_norm_of_a_sum_that_was_written_in_place_is_not_folded() -> None:
    class Writing(Block):
        def forward(self, x: Any) -> Any:
            before = self.conv(x)
            before += 1
            return self.head(self.norm(before).relu().mean((2, 3)))

    torch.manual_seed(0)
    model, x = Writing().eval(), torch.randn(4, 3, 16, 16)
    made = quantize_all(model, [{"x": x}]).module
    assert find_function(made.conv).norm is None
    assert compute_exact_error(model, made, x) < 0.05


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(40, 16), nn.Linear(16, 40, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Any) -> Any:
            return self.head(self.embed(ids))

    torch.manual_seed(0)
    model, ids = Tied().eval(), torch.randint(40, (3, 7))
    made = quantize_all(model, [{"ids": ids}]).module
    assert made.head.weight is made.embed.weight
    assert 0 < compute_exact_error(model, made, ids) < 0.05
    with torch.no_grad():
        made.embed.weight.mul_(2)
        assert compute_error(4 * model(ids), made(ids)) < 0.05


def test_a_layer_under_two_names_and_its_hooks_are_kept() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(8, 8)
    model = nn.Sequential(shared, nn.Tanh(), shared).eval()
    seen: list[Any] = []

    def double_output(layer: nn.Module, inputs: Any, output: Any) -> Any:
        seen.append(output)
        return output * 2

    model[0].register_forward_hook(double_output)
    x = torch.randn(4, 8)
    made = quantize_all(model, [(x,)])
    assert made.module[0] is made.module[2]
    assert made.num_layers == 1
    seen.clear()
    with torch.no_grad():
        assert compute_error(model(x), made.module(x)) < 0.05
    assert len(seen) == 4


def test_attention_that_reads_weights_itself_gives_the_same() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Linear(8, 16), layer).eval()
    x = torch.randn(2, 5, 8)
    made = quantize_all(model, [(x,)])
    assert find_function(made.module[1].self_attn.out_proj) is None
    with torch.no_grad():
        assert compute_error(model(x), made.module(x)) < 0.05


def test_rows_with_outliers_get_scales_of_their_own() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64)).eval(), torch.randn(256, 64)
    x[0] *= 1000
    made = quantize_all(model, [(x,)]).module
    assert find_function(made[0]).by_row
    with torch.no_grad():
        wanted, got = model(x)[1:], made(x)[1:]
    assert float((got - wanted).norm() / wanted.norm()) < 0.02


def test_a_range_with_outliers_is_clipped_and_others_are_not() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 32, 32)
    model = nn.Sequential(nn.Conv2d(4, 4, 3)).eval()
    plain = find_function(quantize_all(model, [{"input": x}]).module[0])
    assert (plain.low, plain.high) == (x.min().item(), x.max().item())


def test_a_module_that_needs_its_layout_keeps_it() -> None:
    class Viewing(Block):
        def forward(self, x: Any) -> Any:
            features = self.norm(self.conv(x))
            return self.head(features.view(len(x), -1).view(len(x), 8, -1).mean(2))

    torch.manual_seed(0)
    model, x = Viewing().eval(), torch.randn(4, 3, 16, 16)
    made = quantize_all(model, [{"x": x}]).module
    assert find_function(made.conv).keeps_layout
    assert 0 < compute_exact_error(model, made, x) < 0.05


def test_results_without_likeness_are_refused_and_layers_return_to_float32() -> None:
    class Chaotic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            return (self.first(x) * 1000).sin()

    torch.manual_seed(0)
    with pytest.raises(Unsupported, match=r"relative error of \d\.\d\d on the example, more than 0\.1"):
        quantize_all(Chaotic().eval(), [(torch.randn(8, 16),)])

    class Mixed(Chaotic):
        def forward(self, x: Any) -> Any:
            # The less exact layer is the one that must be exact: its inputs have outliers in all rows.
            outliers = x * torch.tensor([100.0] + [1.0] * 15)
            return self.second(x), (self.first(outliers)[:, 1:] * 100).sin()

    made = quantize_all(Mixed().eval(), [(torch.randn(64, 16),)])
    assert (made.num_layers, made.num_float_layers) == (1, 1)
    assert find_function(made.module.first) is None
    assert made.error <= LARGEST_ERROR


def test_copies_and_saved_modules_give_the_same() -> None:
    torch.manual_seed(0)
    model, x = Untraceable().eval(), torch.randn(4, 3, 16, 16)
    made: Any = quantize(model, (x,), is_measured=False)
    file = io.BytesIO()
    torch.save(made, file)
    with torch.no_grad():
        wanted = made(x)
        assert torch.equal(copy.deepcopy(made)(x), wanted)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(x), wanted)
        made.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()})
        assert torch.equal(made(x), torch.zeros_like(wanted))


def test_the_original_and_random_numbers_are_left_alone() -> None:
    class Counting(nn.Linear):
        num_calls = 0

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.num_calls = Counting(4, 4), 0

        def forward(self, x: Any) -> Any:
            self.num_calls += 1
            x.mul_(2)
            return self.layer(x)

    torch.manual_seed(0)
    model, x = Counter(), torch.randn(3, 4)
    before, state = x.clone(), torch.random.get_rng_state()
    made: Any = quantize(model, (x,), is_measured=False)
    assert torch.equal(x, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (model.num_calls, made.num_calls, model.training, made.training) == (0, 0, True, False)
    assert type(made.layer) is Counting


def test_functions_of_transformers_still_work() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=100, n_positions=32)
    model = transformers.GPT2LMHeadModel(config).eval()
    example = {"input_ids": torch.randint(100, (2, 12)), "attention_mask": torch.ones(2, 12, dtype=torch.long)}
    made = quantize_all(model, [example])
    # Four Conv1D layers in each block, and the head, whose weight is the embedding.
    assert made.num_layers == 9
    assert isinstance(find_function(made.module.transformer.h[0].attn.c_attn), Int8Linear)
    assert made.module.lm_head.weight is made.module.transformer.wte.weight
    fresh = torch.randint(100, (3, 9))
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(fresh).logits
        assert 0 < float((made.module(fresh).logits - exact).norm() / exact.norm()) < 0.05
    assert made.module.generate(fresh, max_new_tokens=3, do_sample=False).shape == (3, 12)


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_any_gradient_mode_gives_the_same(context: Any) -> None:
    torch.manual_seed(0)
    model, x = Untraceable().eval(), torch.randn(4, 3, 16, 16)
    with context():
        made = quantize_all(model, [(x,)])
        got = made.module(x)
    assert made.num_layers == 2
    assert not got.requires_grad
    assert torch.equal(got, quantize_all(model, [(x,)]).module(x))


def test_traced_and_transformed_modules_compute_in_float32() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 4)).eval().requires_grad_(False), torch.randn(3, 16)
    made = quantize_all(model, [(x,)]).module
    assert torch.allclose(torch.func.vmap(made)(x), model(x), atol=1e-6)
    assert torch.allclose(torch.export.export(made, (x,)).module()(x), model(x), atol=1e-6)
    assert not torch.allclose(made(x), model(x), atol=1e-6)


def test_errors_of_results_are_relative_and_differences_of_structure_infinite() -> None:
    one = torch.tensor([3.0, 4.0, float("-inf")])
    other = torch.tensor([3.0, 4.5, float("-inf")])
    assert compute_error({"a": one}, {"a": other}) == pytest.approx(0.1)
    assert compute_error([one, one], [one]) == float("inf")
    assert compute_error(one, torch.tensor([float("nan"), 4.0, 0.0])) == float("inf")
    assert compute_error(one.long()[:2], other.long()[:2]) == 0


def test_a_slower_function_has_a_larger_ratio() -> None:
    small, large = torch.randn(8, 8), torch.randn(700, 700)
    assert measure_ratio(lambda: large @ large, lambda: small @ small, 0.05) > 2


def test_a_convolution_with_a_norm_trains_as_before() -> None:
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(4, 3, 8, 8)
    made = quantize_all(model, [{"x": x}]).module
    assert isinstance(find_function(made.conv), Int8Convolution)
    assert torch.allclose(made.train()(x), model.train()(x), atol=1e-5)
    assert torch.allclose(made.norm.running_mean, model.norm.running_mean)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "train"}, "cannot be trained"),
        ({"execution": "script"}, "already packed and folded"),
        ({"math": "vanilla"}, "its own kernels"),
        ({"workload": "matmul"}, "no layers to quantize"),
    ],
)
def test_points_without_int8_are_refused(
    params: Params, alone: RankContext, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        prepare(params(**{"workload": "resnet18", "dtype": "int8", "mode": "infer", **changes}), alone)
