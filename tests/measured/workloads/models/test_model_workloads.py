"""The built-in models against published counts."""

import pytest

from corewise.measured.workloads.models.layered_model import LayeredModel
from corewise.measured.workloads.registry import find_workload

# Parameters, and multiply-adds of a 224×224 image in units of 10⁹.
PUBLISHED = {
    "alexnet": (61_100_840, 0.714),
    "resnet18": (11_689_512, 1.814),
    "resnet34": (21_797_672, 3.664),
    "resnet50": (25_557_032, 4.089),
    "resnext50_32x4d": (25_028_904, 4.230),
    "wide_resnet101_2": (126_886_696, 22.753),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_the_published_parameters_and_arithmetic(name: str) -> None:
    num_parameters, giga_multiply_adds = PUBLISHED[name]
    work = find_workload(name).count_work("infer", {})
    assert work.num_parameters == num_parameters
    assert work.flops_per_sample / 2e9 == pytest.approx(giga_multiply_adds, rel=1e-3)
    assert work.pixels_per_sample == 224 * 224


@pytest.mark.parametrize("name", PUBLISHED)
def test_training_costs_three_forward_passes_less_the_first_input_gradient(name: str) -> None:
    infer, train = (find_workload(name).count_work(mode, {}) for mode in ("infer", "train"))
    assert 2.9 * infer.flops_per_sample < train.flops_per_sample < 3 * infer.flops_per_sample
    assert 2 * infer.bytes_per_sample < train.bytes_per_sample < 3 * infer.bytes_per_sample


def test_work_grows_with_the_image_but_parameters_do_not() -> None:
    model = find_workload("resnet18")
    small, large = (model.count_work("infer", {"image_size": size}) for size in (64, 128))
    assert small.num_parameters == large.num_parameters
    assert large.flops_per_sample == pytest.approx(4 * small.flops_per_sample, rel=0.01)


def test_the_number_of_classes_changes_the_last_layer_alone() -> None:
    model = find_workload("resnet18")
    assert model.count_work("infer", {"num_classes": 10}).num_parameters == 11_689_512 - 990 * 513


def test_an_image_too_small_for_the_network_is_refused() -> None:
    alexnet = find_workload("alexnet")
    assert alexnet.count_work("infer", {"image_size": 63}).pixels_per_sample == 63 * 63
    with pytest.raises(ValueError, match="alexnet: image_size 62 is too small"):
        alexnet.count_work("infer", {"image_size": 62})


@pytest.mark.parametrize("args", [{"image_size": 0}, {"image_size": 64.5}, {"num_classes": True}, {"imagesize": 64}])
def test_impossible_arguments_are_refused(args: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"resnet18.*(whole number|has no parameter)"):
        find_workload("resnet18").count_work("infer", args)


def test_a_matrix_product_costs_two_flops_per_term() -> None:
    work = find_workload("matmul").count_work("infer", {"size": 100})
    assert work.flops_per_sample == 2e6
    assert work.bytes_per_sample == 3 * 4 * 100 * 100


def test_a_model_that_does_not_describe_itself_cannot_be_made() -> None:
    class Vague(LayeredModel):
        name = "vague"

    with pytest.raises(TypeError, match=r"abstract.*build_layers.*compute_input_shape.*parameters"):
        Vague()
