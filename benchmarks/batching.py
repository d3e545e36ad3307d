"""Batches of images of many sizes: padding, balance, planning time, header scan, training rate, loader rate.

Compared with random batches (Parés et al., 2021), fully sorted batches, and groups by aspect ratio as in detectron2:
images wider than high and the others fill separate batches, in random order. Collections are drawn with the paper's
statistics: mid resolution (short side 500, batch 32) and high resolution (as is, batch 4). Computed pixels stand for
time; a small convolutional network in plain torch then measures it, with interleaved policies.

    python benchmarks/batching.py --json OUT
    python benchmarks/batching.py --skip-training --images 37407
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measuring import write_figures

from corewise.batching import (
    ImageDataset,
    PadCollate,
    ShapeBatchSampler,
    draw_collection_sizes,
    generate_collection,
    read_image_sizes,
    scale_short_side,
)

MID_BATCH, HIGH_BATCH = 32, 4
PLAN_CODE = """
import sys, time, json
from corewise.batching import ShapeBatchSampler, draw_collection_sizes, scale_short_side
sizes = draw_collection_sizes(int(sys.argv[1]), 1)
if sys.argv[2] == "mid":
    sizes = scale_short_side(sizes)
limit = {"max_pixels": int(sys.argv[4])} if sys.argv[3] in ("budget", "pack") else {"batch_size": int(sys.argv[4])}
before, cpu = time.perf_counter(), time.process_time()
sampler = ShapeBatchSampler(sizes, policy=sys.argv[3], world_size=4, **limit)
plan = sampler.plan_epoch(0)
first, first_cpu = time.perf_counter() - before, time.process_time() - cpu
before, cpu = time.perf_counter(), time.process_time()
sampler.plan_epoch(1)
# The maximum of getrusage would include the process that started this one.
rss = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(json.dumps({"first_s": first, "first_cpu_s": first_cpu, "next_s": time.perf_counter() - before,
                  "next_cpu_s": time.process_time() - cpu, "peak_rss_mib": rss}))
"""


def group_by_aspect(sizes, batch, seed):
    """Return batches as detectron2 forms them: a buffer for wide images, one for the others."""
    buckets, batches = {True: [], False: []}, []
    for image in np.random.default_rng(seed).permutation(len(sizes)).tolist():
        height, width = sizes[image]
        bucket = buckets[bool(width > height)]
        bucket.append(image)
        if len(bucket) == batch:
            batches.append(list(bucket))
            bucket.clear()
    # detectron2's endless stream never ends; here the rest forms batches too.
    return batches + [bucket for bucket in buckets.values() if bucket]


def compute_padding(sizes, batches):
    own = sum(int(sizes[b].prod(axis=1).sum()) for b in batches)
    padded = [len(b) * int(sizes[b].max(axis=0).prod()) for b in batches]
    return 1 - own / sum(padded), max(padded)


def compute_even_budget(sizes, batch):
    """Return the pixels of about `batch` images, or of the largest image, as `corewise shapes --batch` does."""
    pixels = sizes.prod(axis=1)
    return max(int(pixels.max()), int(1.1 * batch * pixels.mean()))


def compare_policies(name, sizes, batch, seeds):
    """Print padding and balance of every policy at the peak memory of random batches, over several seeds."""
    rows = {}
    for seed in range(seeds):
        random = ShapeBatchSampler(sizes, policy="random", batch_size=batch, seed=seed)
        peak = random.compute_figures().peak_pixels
        limits = {
            "random": {"batch_size": batch},
            "sorted": {"batch_size": batch, "max_pixels": peak},
            "bucket": {"batch_size": batch, "max_pixels": peak},
            "budget": {"max_pixels": peak},
            "budget (even)": {"max_pixels": compute_even_budget(sizes, batch)},
            "sorted budget": {"max_pixels": peak},
            "pack": {"max_pixels": peak},
        }
        for policy, limit in limits.items():
            order = policy.split()[0]
            figures = ShapeBatchSampler(sizes, policy=order, seed=seed, **limit).compute_figures()
            on_four = ShapeBatchSampler(sizes, policy=order, seed=seed, world_size=4, **limit).compute_figures()
            rows.setdefault(policy, []).append(
                (figures.padding_share, figures.peak_pixels, on_four.step_imbalance, on_four.epoch_imbalance)
            )
        rows.setdefault("aspect groups", []).append(
            (*compute_padding(sizes, group_by_aspect(sizes, batch, seed)), 0, 0)
        )
    result = {}
    base = statistics.median(1 - row[0] for row in rows["random"])
    fixed = statistics.median(1 - row[0] for row in rows["sorted"])
    groups = statistics.median(1 - row[0] for row in rows["aspect groups"])
    print(f"\n{name}: {len(sizes):,} images, {seeds} seeds, informative rate by computed pixels")
    heads = ("padding", "peak MP", "/random", "/aspect", "/sorted", "step", "epoch")
    print(f"{'':14}" + "".join(f"{head:>9}" for head in heads) + f"{'companions':>11}")
    for policy, values in rows.items():
        share = 1 - statistics.median(row[0] for row in values)
        companions = float("nan")
        if policy != "aspect groups":
            limit = limits[policy]
            companions = ShapeBatchSampler(sizes, policy=policy.split()[0], **limit).estimate_companions()
        result[policy] = {
            "padding_share": 1 - share, "peak_pixels": max(row[1] for row in values), "over_random": share / base,
            "over_aspect_groups": share / groups, "over_sorted": share / fixed,
            "step_imbalance": max(row[2] for row in values), "epoch_imbalance": max(row[3] for row in values),
            "companions": companions,
        }  # fmt: skip
        r = result[policy]
        print(
            f"{policy:14} {100 * r['padding_share']:7.1f}% {r['peak_pixels'] / 1e6:8.0f} {r['over_random']:8.2f} "
            f"{r['over_aspect_groups']:8.2f} {r['over_sorted']:8.3f} {100 * r['step_imbalance']:6.1f}% "
            f"{100 * r['epoch_imbalance']:6.2f}% {companions:10.0f}"
        )
    return result


def measure_planning(num_images):
    """Measure the first and the second epoch plan of a large collection, each in a fresh process."""
    import json

    print(f"\n{num_images:,} images, 4 ranks: seconds (CPU seconds) of the first and next plan, peak memory")
    result = {}
    for which, policy, limit in (("mid", "bucket", 32), ("mid", "budget", 48_000_000), ("high", "bucket", 4),
                                 ("high", "budget", 60_000_000)):  # fmt: skip
        command = [sys.executable, "-c", PLAN_CODE, str(num_images), which, policy, str(limit)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        result[f"{which} {policy}"] = found
        print(
            f"{which:5} {policy:7} {found['first_s']:6.2f} ({found['first_cpu_s']:.2f}) {found['next_s']:6.2f} "
            f"({found['next_cpu_s']:.2f}) {found['peak_rss_mib']:6.0f} MiB"
        )
    return result


def measure_scan(folder):
    """Measure the header scan on one core, with warm files and without the cache of sizes."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    rates = []
    for _ in range(5):
        start, cpu = time.perf_counter(), time.process_time()
        found = read_image_sizes(folder, use_cache=False)
        rates.append((len(found.paths) / (time.perf_counter() - start), len(found.paths) / (time.process_time() - cpu)))
    os.sched_setaffinity(0, allowed)
    wall, cpu = (statistics.median(values) for values in zip(*rates, strict=True))
    print(f"\nheader scan on one core: {wall:,.0f} images/s, {cpu:,.0f} per CPU second")
    return {"images_per_s": wall, "images_per_cpu_s": cpu}


def build_network():
    from torch import nn

    layers, channels = [], 3
    for width in (16, 32, 64):
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4))


def train_steps(sampler, steps, seed):
    """Train on random tensors of the planned shapes; return informative and computed megapixels per second."""
    import torch

    torch.manual_seed(seed)
    network = build_network()
    optimizer = torch.optim.Adam(network.parameters(), 1e-4)
    plan = sampler.plan_epoch(seed)
    chosen = np.linspace(0, len(plan.steps) - 1, min(steps, len(plan.steps))).astype(int)
    own = padded = seconds = 0.0
    for step in chosen:
        number = int(plan.steps[step, 0])
        count, height, width = (
            int(v[number]) for v in (plan.batches.depths, plan.batches.heights, plan.batches.widths)
        )
        images = torch.randn(count, 3, height, width)
        labels = torch.randint(0, 4, (count,))
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
        seconds += time.perf_counter() - start
        own += float(sampler._pixels[plan.batches.select(number)].sum()) / 1e6
        padded += count * height * width / 1e6
    return own / seconds, padded / seconds


def measure_training(name, sizes, batch, steps, rounds):
    """Train with every policy in turn, at the peak memory of random batches."""
    peak = ShapeBatchSampler(sizes, policy="random", batch_size=batch).compute_figures().peak_pixels
    samplers = {
        "random": ShapeBatchSampler(sizes, policy="random", batch_size=batch),
        "sorted": ShapeBatchSampler(sizes, policy="sorted", batch_size=batch, max_pixels=peak),
        "bucket": ShapeBatchSampler(sizes, policy="bucket", batch_size=batch, max_pixels=peak),
        "budget": ShapeBatchSampler(sizes, policy="budget", max_pixels=peak),
        "budget (even)": ShapeBatchSampler(sizes, policy="budget", max_pixels=compute_even_budget(sizes, batch)),
    }
    rates = {policy: [] for policy in samplers}
    for round_number in range(rounds):
        for policy, sampler in samplers.items():
            rates[policy].append(train_steps(sampler, steps, round_number))
    base = statistics.median(own for own, _ in rates["random"])
    print(f"\n{name}: training a small network, {rounds} rounds of {steps} steps, interleaved")
    result = {}
    for policy, values in rates.items():
        own, computed = (statistics.median(column) for column in zip(*values, strict=True))
        result[policy] = {"informative_mp_per_s": own, "computed_mp_per_s": computed, "over_random": own / base}
        print(f"{policy:14} {own:8.2f} informative MP/s {computed:8.2f} computed MP/s {own / base:6.2f}× random")
    return result


def measure_loader(folder, num_workers, rounds=3):
    """Measure the loader on real JPEG files, and on tensors that need no decoding, with the same batches."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Synthetic(Dataset):
        def __init__(self, sizes):
            self.sizes = sizes

        def __len__(self):
            return len(self.sizes)

        def __getitem__(self, index):
            return torch.zeros(3, *self.sizes[index].tolist()), 0

    torch.set_num_threads(1)
    real = ImageDataset(read_image_sizes(folder))
    network = build_network()
    limit = int(8 * real.sizes.prod(axis=1).mean())
    rates = {"real": [], "synthetic": [], "real, loading only": [], "synthetic, loading only": []}
    for round_number in range(rounds):
        for name, dataset in (("real", real), ("synthetic", Synthetic(real.sizes))):
            for trains in (True, False):
                sampler = ShapeBatchSampler(real.sizes, policy="budget", max_pixels=limit, seed=round_number)
                loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=PadCollate(), num_workers=num_workers)
                start, count = time.perf_counter(), 0
                for batch in loader:
                    count += len(batch.images)
                    if trains:
                        network(batch.images).sum().backward()
                key = name if trains else f"{name}, loading only"
                rates[key].append(count / (time.perf_counter() - start))
    result = {name: statistics.median(values) for name, values in rates.items()}
    share = result["real"] / result["synthetic"]
    print(f"\nloader with {num_workers} workers: images/s " + ", ".join(f"{k} {v:.1f}" for k, v in result.items()))
    limited = "" if share >= 0.95 else f"; decoding is the limit: {result['real, loading only']:.1f} images/s"
    print(f"training on real JPEG files keeps {100 * share:.0f} % of the rate on synthetic tensors{limited}")
    return {**result, "share": share}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=37_407)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--planned", type=int, default=1_000_000, help="images of the planning measurement")
    parser.add_argument("--files", type=int, default=400, help="JPEG files that are written")
    parser.add_argument("--file-megapixels", type=float, default=0.3)
    parser.add_argument("--training-megapixels", type=float, default=0.4, help="mean of the high resolution")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--skip-training", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    high = draw_collection_sizes(options.images, 1)
    mid = scale_short_side(high)
    figures = {
        "mid": compare_policies("mid resolution", mid, MID_BATCH, options.seeds),
        "high": compare_policies("high resolution", high, HIGH_BATCH, options.seeds),
        "planning": measure_planning(options.planned),
    }
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "images"
        generate_collection(place, options.files, seed=1, mean_megapixels=options.file_megapixels)
        figures["scan"] = measure_scan(place)
        if not options.skip_training:
            # Scaled to a small machine: all ratios of sides stay.
            scale = (options.training_megapixels / 6.6) ** 0.5
            small = np.maximum(1, (high * scale).astype(np.int64))
            figures["training mid"] = measure_training(
                "mid resolution, scaled",
                scale_short_side(small, round(500 * scale)),
                MID_BATCH,
                options.steps,
                options.rounds,
            )
            figures["training high"] = measure_training(
                "high resolution, scaled", small, HIGH_BATCH, options.steps, options.rounds
            )
            figures["loader"] = measure_loader(place, options.workers)
    write_figures(options.json, **figures)


if __name__ == "__main__":
    main()
