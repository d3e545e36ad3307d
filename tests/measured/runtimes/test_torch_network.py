"""Torch modules of described networks, compared with torch's counts."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode

from corewise.measured.runtimes.torch.modules.network import ResidualModule, build_module, build_network
from corewise.measured.runtimes.torch.modules.sgd import CpuSgd
from corewise.measured.workloads.models import layers
from corewise.measured.workloads.registry import find_workload

MODELS = ("alexnet", "resnet18", "resnet34", "resnet50", "resnext50_32x4d", "wide_resnet101_2")


@pytest.mark.parametrize("name", MODELS)
def test_the_module_has_as_many_parameters_as_the_description(name: str) -> None:
    model = find_workload(name)
    with torch.device("meta"):
        module = build_module(model.build_layers({}))
    assert sum(p.numel() for p in module.parameters()) == model.count_work("infer", {}).num_parameters


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_the_work_is_what_torch_counts(name: str, mode: str) -> None:
    if (name, mode) == ("resnext50_32x4d", "train"):
        pytest.skip("torch counts input gradients of grouped convolutions as if they had no groups")
    model = find_workload(name)
    args = {"image_size": 224, "num_classes": 1000}
    with torch.device("meta"):
        module = build_module(model.build_layers(args))
        images = torch.empty(2, *model.compute_input_shape(args))
    with FlopCounterMode(display=False) as counter:
        outputs = module(images)
        if mode == "train":
            outputs.sum().backward()
    assert tuple(outputs.shape) == (2, 1000)
    assert counter.get_total_flops() == 2 * model.count_work(mode, args).flops_per_sample


def test_equal_seeds_give_equal_weights_and_other_seeds_do_not() -> None:
    description = find_workload("resnet18").build_layers({"num_classes": 10})
    first, again, other = (build_network(description, seed).state_dict() for seed in (4, 4, 5))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_a_fresh_network_keeps_values_in_range_through_its_depth() -> None:
    network = build_network(find_workload("resnet34").build_layers({}), seed=0).eval()
    with torch.inference_mode():
        outputs = network(torch.randn(2, 3, 64, 64))
    assert 0.01 < outputs.std() < 10


def test_a_residual_adds_its_branches() -> None:
    double = ResidualModule(torch.nn.Identity(), torch.nn.Identity())
    assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))


def test_a_layer_without_a_module_is_named() -> None:
    with pytest.raises(NotImplementedError, match="no module for Add"):
        build_module(layers.Add())


def test_our_sgd_equals_torchs_bit_for_bit() -> None:
    ours = [
        torch.nn.Parameter(torch.randn(7, 5)),
        torch.nn.Parameter(torch.randn(3)),
        torch.nn.Parameter(torch.ones(2)),
    ]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    mine, reference = CpuSgd(ours, lr=0.1, momentum=0.9), torch.optim.SGD(theirs, lr=0.1, momentum=0.9)
    for _ in range(4):
        # The third parameter never gets a gradient.
        for p, q in list(zip(ours, theirs, strict=True))[:2]:
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        mine.step()
        reference.step()
        mine.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))
    assert all(p.grad is None for p in ours)
