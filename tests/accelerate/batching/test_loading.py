"""Batches through torch's DataLoader: real files, workers, padding, canvases, and two ranks."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
from tests.accelerate.batching.sample_images import write_image
from torch.utils.data import DataLoader

from corewise.batching import (
    BatchingError,
    ImageDataset,
    PackCollate,
    PadCollate,
    ShapeBatchSampler,
    ShapeBatchStream,
    generate_collection,
    read_image_sizes,
)

RANK_SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from corewise.batching import ImageDataset, PadCollate, ShapeBatchSampler, read_image_sizes
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2)
dataset = ImageDataset(read_image_sizes(sys.argv[1]))
sampler = ShapeBatchSampler(dataset.sizes, policy="bucket", batch_size=4, rank=dist.get_rank(), world_size=2)
loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=PadCollate(), num_workers=2)
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)))
seen = 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    for images, masks, sizes, labels in loader:
        nn.functional.cross_entropy(model(images), labels).backward()
        seen += len(labels)
total = torch.tensor(seen)
dist.all_reduce(total)
print("SEEN", int(total))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collection") / "images"
    generate_collection(folder, 41, seed=1, mean_megapixels=0.01)
    return folder


def test_a_generated_collection_has_the_drawn_sizes_and_is_never_overwritten(collection: Path) -> None:
    found = read_image_sizes(collection, use_cache=False)
    assert len(found.paths) == 41
    assert found.problems == ()
    with pytest.raises(BatchingError, match="not an empty folder"):
        generate_collection(collection, 1)


def test_a_collection_of_the_same_seed_has_the_same_bytes(collection: Path, tmp_path: Path) -> None:
    generate_collection(tmp_path / "again", 5, seed=1, mean_megapixels=0.01)
    for path in (tmp_path / "again").rglob("*.jpg"):
        assert path.read_bytes() == (collection / path.parent.name / path.name).read_bytes()


@pytest.mark.parametrize(("policy", "num_workers"), [("bucket", 2), ("budget", 0), ("pack", 0)])
def test_a_loader_yields_every_pixel_of_every_image(collection: Path, policy: str, num_workers: int) -> None:
    dataset = ImageDataset(read_image_sizes(collection))
    limit: Any = {"batch_size": 4} if policy == "bucket" else {"max_pixels": 60_000}
    sampler = ShapeBatchSampler(dataset.sizes, policy=policy, **limit)
    collate = PackCollate() if policy == "pack" else PadCollate()
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, num_workers=num_workers)
    planned = list(sampler)
    num_images = num_pixels = 0
    for images, batch in zip(planned, loader, strict=True):
        assert batch.targets.tolist() == [dataset.labels[image] for image in images]
        belongs = batch[1] > 0
        num_pixels += int(belongs.sum())
        num_images += len(batch.targets)
        assert not batch.images.permute(0, 2, 3, 1)[~belongs].any()
    assert num_images == 41
    assert num_pixels == dataset.sizes.prod(axis=1).sum()


def test_a_padded_batch_holds_the_images_at_the_top_left() -> None:
    samples = [(torch.ones(3, 4, 6), 1), (2 * torch.ones(3, 5, 2), 0)]
    batch = PadCollate(multiple_of=4)(samples)
    assert batch.images.shape == (2, 3, 8, 8)
    assert batch.sizes.tolist() == [[4, 6], [5, 2]]
    assert batch.masks.sum(dim=(1, 2)).tolist() == [24, 10]
    assert batch.images[1, :, :5, :2].eq(2).all()


def test_a_packed_batch_says_where_each_image_is() -> None:
    samples = [torch.full((1, 4 + i, 6), i + 1.0) for i in range(5)]
    batch = PackCollate(gap=1)(samples)
    assert batch.targets is None
    for i, (top, left, height, width) in enumerate(batch.boxes.tolist()):
        assert batch.images[0, 0, top : top + height, left : left + width].eq(i + 1).all()
        assert int((batch.owners == i + 1).sum()) == height * width


def test_samples_that_cannot_be_padded_are_named() -> None:
    with pytest.raises(BatchingError, match="sample 1 of the batch has 1 channels and the first has 3"):
        PadCollate()([torch.ones(3, 4, 4), torch.ones(1, 4, 4)])
    with pytest.raises(BatchingError, match="sample 0 of the batch has the type str"):
        PadCollate()([("text", 1)])


@pytest.mark.parametrize(
    ("name", "mode"), [("a.png", "RGBA"), ("a.png", "L"), ("a.png", "I;16"), ("a.png", "P"), ("a.jpg", "CMYK")]
)
def test_every_mode_becomes_three_channels(tmp_path: Path, name: str, mode: str) -> None:
    write_image(tmp_path / name, 6, 9, mode)
    image, label = ImageDataset(read_image_sizes(tmp_path))[0]
    assert (image.shape, image.dtype, label) == ((3, 6, 9), torch.float32, 0)


def test_a_turned_image_is_loaded_upright_and_scaled(tmp_path: Path) -> None:
    write_image(tmp_path / "a.jpg", 60, 100, turned=True)
    found = read_image_sizes(tmp_path)
    assert ImageDataset(found)[0][0].shape == (3, 100, 60)
    scaled = ImageDataset(found, short_side=30)
    assert scaled[0][0].shape == (3, *scaled.sizes[0]) == (3, 50, 30)


def test_a_file_that_changed_after_the_scan_is_named(tmp_path: Path) -> None:
    found = read_image_sizes(write_image(tmp_path / "a.jpg").parent)
    write_image(tmp_path / "a.jpg", 31, 50)
    with pytest.raises(BatchingError, match=r"a\.jpg has 31×50 pixels, but its header said 30×50"):
        ImageDataset(found)[0]


def test_a_stream_is_collated(collection: Path) -> None:
    dataset = ImageDataset(read_image_sizes(collection))
    # Workers decode, and the main process forms batches.
    samples = DataLoader(dataset, batch_size=None, num_workers=1, shuffle=True)
    stream = ShapeBatchStream(samples, lambda sample: sample[0].shape[-2:], max_pixels=60_000, buffer_size=16)
    assert sum(len(PadCollate()(batch).targets) for batch in stream) == 41


@pytest.mark.slow
def test_two_ranks_train_on_every_image_once_per_epoch(collection: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK_SCRIPT)
    meeting = str(tmp_path / "meeting")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(collection), meeting, str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert all("SEEN 82" in output for output in outputs)
