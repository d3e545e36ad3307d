"""Batches from a folder of images."""

import itertools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import RankContext, WorkloadError
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.runtimes.torch.modules.images import (
    DEVIATION,
    MEAN,
    DecodedImages,
    EndlessOrder,
    find_images,
    label_by_folder,
)

Params = Callable[..., TrialParameters]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven images of several formats, shapes and colour modes in three folders of different depth."""
    random = np.random.default_rng(0)
    root = tmp_path / "images"
    places = ["cat/a.jpg", "cat/b.PNG", "dog/c.jpeg", "dog/d.webp", "dog/e.bmp", "wild/fox/f.jpg", "wild/fox/g.png"]
    for number, place in enumerate(places):
        file = root / place
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (40 + number, 50 - number, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        (image.convert("L") if number == 6 else image).save(file)
    (root / "cat" / "notes.txt").write_text("not an image")
    return root


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def test_images_are_found_at_any_depth_and_labelled_by_their_folder(folder: Path) -> None:
    files = find_images(str(folder))
    assert [f.name for f in files] == ["a.jpg", "b.PNG", "c.jpeg", "d.webp", "e.bmp", "f.jpg", "g.png"]
    assert label_by_folder(files, 3, "") == (0, 0, 1, 1, 1, 2, 2)


def test_an_image_is_cut_to_its_centre_scaled_and_normalised(tmp_path: Path) -> None:
    pixels = np.zeros((20, 60, 3), dtype=np.uint8)
    # The central square has another color.
    pixels[:, 20:40] = (255, 128, 0)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    image, label = DecodedImages((tmp_path / "wide.png",), (4,), size=10)[0]
    wanted = (torch.tensor([255, 128, 0]) / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    assert label == 4
    assert image.shape == (3, 10, 10)
    assert torch.allclose(image[:, 5, 5], wanted, atol=1e-5)


def test_every_image_is_seen_before_any_returns_and_ranks_share_them_out() -> None:
    orders = [list(itertools.islice(EndlessOrder(range(6), rank, 2), 6)) for rank in range(2)]
    assert sorted(orders[0][:3] + orders[1][:3]) == list(range(6))
    assert orders[0][3:] + orders[1][3:] != orders[0][:3] + orders[1][:3]
    assert orders[0] == list(itertools.islice(EndlessOrder(range(6), 0, 2), 6))


@pytest.mark.parametrize("loader_workers", [0, 2])
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_trial_runs_on_a_folder_and_leaves_no_process(
    params: Params, alone: RankContext, folder: Path, mode: str, loader_workers: int
) -> None:
    job = prepare(
        params(
            workload="resnet18",
            mode=mode,
            image_size=32,
            num_classes=3,
            batch=4,
            data=str(folder),
            loader_workers=loader_workers,
            memory_format="channels_last",
        ),
        alone,
    )
    try:
        assert job.check().passed
        # The folder has fewer images.
        for _ in range(3):
            job.step()
        facts = job.read_facts()
    finally:
        job.close()
    assert (facts["num_images"], facts["page_cache"], facts["data"]) == (7, "warm", str(folder))
    assert multiprocessing.active_children() == []


def test_every_tenth_image_is_held_out_and_never_trained_on(params: Params, alone: RankContext, tmp_path: Path) -> None:
    for number in range(20):
        target = tmp_path / ("dark" if number < 10 else "light") / f"{number:02}.png"
        target.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 10 * number, dtype=np.uint8)).save(target)
    job = prepare(
        params(workload="resnet18", mode="train", image_size=32, num_classes=2, batch=3, data=str(tmp_path)), alone
    )
    try:
        trained = torch.cat([job._batches.next()[0][0] for _ in range(12)])[:, 0, 0, 0]
        [(held_out, labels)] = [(inputs[0][:, 0, 0, 0], labels) for inputs, labels in job._batches.list_held_out()]
        job.step()
        metrics = job.collect_sampled_metrics(1)
    finally:
        job.close()
    assert labels.tolist() == [0, 1]
    assert len(set(trained.tolist())) == 18
    assert not set(trained.tolist()) & set(held_out.tolist())
    assert metrics["accuracy"] in (0, 0.5, 1)


def test_bad_folders_are_named(params: Params, alone: RankContext, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    for data, message in (("absent", "folder .*absent does not exist"), ("empty", "no images under .*empty")):
        with pytest.raises(WorkloadError, match=message):
            prepare(params(workload="resnet18", image_size=32, data=str(tmp_path / data)), alone)
    with pytest.raises(WorkloadError, match="3 folders of images but num_classes is 2"):
        prepare(params(workload="resnet18", image_size=32, num_classes=2, data=str(folder)), alone)


def test_a_file_that_is_no_image_is_named_before_anything_runs(
    params: Params, alone: RankContext, folder: Path
) -> None:
    (folder / "dog" / "fake.jpg").write_text("hello")
    with pytest.raises(WorkloadError, match=r"dog/fake\.jpg is not a readable image"):
        prepare(params(workload="resnet18", image_size=32, data=str(folder)), alone)


@pytest.mark.parametrize("loader_workers", [0, 1])
def test_a_damaged_image_is_named_when_it_is_decoded(
    params: Params, alone: RankContext, tmp_path: Path, loader_workers: int
) -> None:
    root = tmp_path / "damaged"
    root.mkdir()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(root / "cut.jpg")
    (root / "cut.jpg").write_bytes((root / "cut.jpg").read_bytes()[:1500])
    job = prepare(params(workload="resnet18", image_size=32, data=str(root), loader_workers=loader_workers), alone)
    try:
        with pytest.raises(WorkloadError, match=r"^/.*damaged/cut\.jpg cannot be decoded as an image: [^\n]*$"):
            job.step()
    finally:
        job.close()
