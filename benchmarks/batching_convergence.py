"""Training with batches of similar shapes, compared with random batches: loss against images and against time.

The task is generated: JPEG files of many sizes whose class is the direction of faint stripes. Files are decoded in each
epoch. Every policy trains the same network from the same start, over several seeds, for equal numbers of images.
`budget` batches get as many pixels as lead to equally many updates. Images of a test collection of another seed are
classified one by one, so padding plays no part there.

    python benchmarks/batching_convergence.py --seeds 3 --json OUT
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from measuring import write_figures

from corewise.batching import ImageDataset, PadCollate, ShapeBatchSampler, generate_collection, read_image_sizes

POLICIES = ("random", "bucket", "budget")
NUM_CLASSES = 8


def build_network():
    """Build a convolutional network whose pooling ignores padding."""
    import torch
    from torch import nn

    class MaskedNetwork(nn.Module):
        def __init__(self):
            super().__init__()
            layers, channels = [], 3
            for width in (16, 24, 32):
                layers += [nn.Conv2d(channels, width, 5, stride=2, padding=2), nn.ReLU()]
                channels = width
            self.features = nn.Sequential(*layers)
            self.classify = nn.Linear(channels, NUM_CLASSES)

        def forward(self, images, masks):
            found = self.features(images - 0.5)
            weights = nn.functional.interpolate(masks[:, None].float(), found.shape[-2:], mode="nearest")
            return self.classify((found * weights).sum((2, 3)) / weights.sum((2, 3)).clamp(min=1))

    torch.set_num_threads(1)
    return MaskedNetwork()


def find_equal_budget(sizes, batch):
    """Return the pixels per batch that lead to about as many batches as `batch` images each."""
    wanted = len(sizes) / batch
    low, high = int(sizes.prod(axis=1).mean()), 10 * batch * int(sizes.prod(axis=1).max())
    while high - low > low // 50:
        middle = (low + high) // 2
        num_batches = len(ShapeBatchSampler(sizes, policy="budget", max_pixels=middle))
        low, high = (middle, high) if num_batches > wanted else (low, middle)
    return high


def measure_accuracy(network, dataset):
    import torch

    with torch.no_grad():
        right = [
            int(network(image[None], torch.ones(1, *image.shape[-2:])).argmax() == label)
            for image, label in (dataset[i] for i in range(len(dataset)))
        ]
    return sum(right) / len(right)


def train(policy, dataset, test, batch, max_pixels, seed, num_epochs):
    """Train and return the final accuracy, and the curve: images, seconds, loss of each epoch."""
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(seed)
    network = build_network()
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    limit = {"max_pixels": max_pixels} if policy == "budget" else {"batch_size": batch}
    sampler = ShapeBatchSampler(dataset.sizes, policy=policy, seed=seed, **limit)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=PadCollate(), num_workers=2, persistent_workers=True)
    curve, start, num_images, num_updates = [], time.perf_counter(), 0, 0
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, masks, _, labels in loader:
            loss = torch.nn.functional.cross_entropy(network(images, masks), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(labels)
            num_updates += 1
        num_images += len(dataset)
        curve.append((num_images, time.perf_counter() - start, total / len(dataset)))
    return {"accuracy": measure_accuracy(network, test), "updates": num_updates, "curve": curve}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--test-images", type=int, default=240)
    parser.add_argument("--megapixels", type=float, default=0.02)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {policy: [] for policy in POLICIES}
    with tempfile.TemporaryDirectory() as folder:
        for name, count, seed in (("train", options.images, 1), ("test", options.test_images, 2)):
            generate_collection(
                Path(folder, name), count, seed=seed, mean_megapixels=options.megapixels, num_classes=NUM_CLASSES
            )
        dataset, test = (ImageDataset(read_image_sizes(Path(folder, name))) for name in ("train", "test"))
        max_pixels = find_equal_budget(dataset.sizes, options.batch)
        for seed in range(options.seeds):
            for policy in POLICIES:
                found = train(policy, dataset, test, options.batch, max_pixels, seed, options.epochs)
                results[policy].append(found)
                images, seconds, loss = found["curve"][-1]
                print(
                    f"seed {seed} {policy:7} accuracy {found['accuracy']:.3f} loss {loss:.3f} after {images} images, "
                    f"{found['updates']} updates, {seconds:.1f} s",
                    flush=True,
                )
    print(f"\n{'':8} {'mean accuracy':>15} {'low':>6} {'high':>6} {'seconds':>8}   mean loss after each epoch")
    for policy, runs in results.items():
        accuracies = [run["accuracy"] for run in runs]
        losses = [
            statistics.mean(values) for values in zip(*([p[2] for p in run["curve"]] for run in runs), strict=True)
        ]
        seconds = statistics.median(run["curve"][-1][1] for run in runs)
        curve = " ".join(f"{loss:.3f}" for loss in losses)
        print(
            f"{policy:8} {statistics.mean(accuracies):15.3f} {min(accuracies):6.3f} {max(accuracies):6.3f} "
            f"{seconds:8.1f}   {curve}"
        )
    print(f"chance: {1 / NUM_CLASSES:.3f}")
    write_figures(options.json, **results)


if __name__ == "__main__":
    main()
