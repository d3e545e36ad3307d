"""Data-parallel training against replicas that exchange nothing: stock DDP over gloo, and shared memory.

Every rank holds one copy of the model per method and is pinned to its cores. All methods alternate in every round, so
that they meet the same disturbances. Efficiency is the throughput over that of the replicas, which run on all cores
at the same time, too. `no-sync` is DDP that exchanges nothing: its step shows what DDP itself costs, and the difference
to `shared` is what communication costs in all, exposed or by slowing the backward pass down. It needs torch and numpy
only:

    PYTHONPATH=src python benchmarks/data_parallel.py --points resnet50:64:8x2 alexnet:256:16x1 --json OUT

A point is MODEL:GLOBAL_BATCH:RANKSxTHREADS. `shared` averages after the backward pass, as `attach` does within a node,
and `shared-overlap` while it runs. `--buckets` adds shared memory with other bucket sizes in MiB.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCES = str(Path(__file__).resolve().parent.parent / "src")
# Glibc keeps freed memory, as with `allocator: retain`; otherwise page faults cost more than communication.
RETAIN = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**26)}
LEARNING_RATE, MOMENTUM = 0.001, 0.9
NUM_BATCHES = 2
METHODS = ("replicas", "no-sync", "gloo", "shared", "shared-overlap")
SPLIT = ("compute_s", "communication_s", "exposed_communication_s", "imbalance_s")


def list_cores():
    """Return one logical CPU of each allowed core."""
    chosen = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        chosen.setdefault(siblings.read_text().strip() if siblings.exists() else str(cpu), cpu)
    return list(chosen.values())


class Method:
    """One copy of the model with its optimizer, trained without exchange, over gloo or in shared memory."""

    # Ranks that never exchange anything run apart, so the weights of this method differ between ranks.
    is_local = False

    def __init__(self, name, build, loss, batches):
        import torch

        from corewise.measured.runtimes.torch.modules.sgd import CpuSgd
        from corewise.measured.runtimes.torch.modules.step_timeline import StepTimeline

        module = build()
        self.timeline, self._loss, self._batches, self._turn = StepTimeline(), loss, batches, 0
        self._optimizer = CpuSgd(module.parameters(), LEARNING_RATE, MOMENTUM)
        self._model = module
        if name in ("gloo", "no-sync"):
            self.is_local = name == "no-sync"
            self._model = torch.nn.parallel.DistributedDataParallel(module)
        elif name.startswith("shared"):
            self._model = self._share(module, name)

    def _share(self, module, name):
        import torch

        from corewise import collectives

        option = name.partition("-")[2]
        size = {"bucket_cap_mb": int(option)} if option.isdigit() else {}
        model = torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True, **size)
        attached = collectives.attach(model, timeout_s=300, overlap=option == "overlap")
        if attached.backend != "shared":
            raise SystemExit(f"shared memory is not used: {attached.reason}")
        attached.observer = self.timeline.add_bucket
        module.register_forward_pre_hook(lambda *_: self.timeline.mark_forward())
        return model

    def step(self):
        self._turn += 1
        self.timeline.begin_step()
        inputs, labels = self._batches[self._turn % len(self._batches)]
        self.timeline.mark_input()
        self._optimizer.zero_grad()
        with self._model.no_sync() if self.is_local else contextlib.nullcontext():
            self._loss(self._model(inputs), labels).backward()
        self.timeline.mark_backward()
        self._optimizer.step()
        self.timeline.end_step()

    def time(self, num_steps):
        """Return the seconds and the CPU seconds per step, after one step that is not timed."""
        self.step()
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            self.step()
        return (time.perf_counter() - start) / num_steps, (time.process_time() - cpu_start) / num_steps


def build_methods(options, rank, num_ranks):
    import torch

    from corewise.measured.runtimes.torch.modules.described_models import compute_training_loss
    from corewise.measured.runtimes.torch.modules.network import build_network
    from corewise.measured.workloads.registry import find_workload

    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = find_workload(options.model)
    arguments = {**model.parameters, "image_size": options.image_size}

    def build():
        layers = model.build_layers(arguments)
        return build_network(layers, 1, side_by_side=False, training=True).train().to(memory_format=layout)

    generator = torch.Generator().manual_seed(rank)
    shape = (options.batch // num_ranks, *model.compute_input_shape(arguments))
    batches = [
        (
            torch.randn(shape, generator=generator).contiguous(memory_format=layout),
            torch.randint(model.read_num_classes(arguments), shape[:1], generator=generator),
        )
        for _ in range(NUM_BATCHES)
    ]
    return {name: Method(name, build, compute_training_loss, batches) for name in options.methods}


def run_rank(options):
    rank, num_ranks, num_threads = options.rank
    cores = list_cores()
    own = [cores[(rank * num_threads + i) % len(cores)] for i in range(num_threads)]
    os.sched_setaffinity(0, own)
    sys.path.insert(0, SOURCES)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    from corewise.measured.runtimes.torch.modules.step_timeline import summarize_local_steps, summarize_shared_steps

    torch.set_num_threads(num_threads)
    dist.init_process_group("gloo", store=dist.FileStore(options.store, num_ranks), rank=rank, world_size=num_ranks)
    methods = build_methods(options, rank, num_ranks)

    def gather(values):
        gathered = [None] * num_ranks
        dist.all_gather_object(gathered, values)
        return gathered

    first_s = max(max(gather(method.time(1)[0])) for method in methods.values())
    num_steps = max(2, min(50, round(options.turn_s / first_s)))
    turns = {name: [] for name in methods}
    for number in range(options.rounds):
        names = list(methods)
        # Another order in every round, the same on all ranks.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            dist.barrier()
            turns[name].append(methods[name].time(num_steps))
    split = {}
    for name, method in methods.items():
        steps = method.timeline.take_last(num_steps * options.rounds)
        own_split = summarize_local_steps(steps)
        if name.startswith("shared"):
            own_split.update(summarize_shared_steps(steps, rank, gather))
        split[name] = own_split
    gathered = gather((turns, split))
    if rank == 0:
        Path(options.out).write_text(json.dumps({"ranks": gathered, "num_steps": num_steps}))
    dist.barrier()
    # Threads of gloo and of shared memory need no orderly end.
    os._exit(0)


def start_ranks(options, model, batch, num_ranks, num_threads):
    """Run one point and return what its ranks measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, __file__, "--model", model, "--batch", str(batch), "--out", str(out)]
        command += ["--store", str(Path(folder) / "store"), "--rounds", str(options.rounds)]
        command += ["--turn-s", str(options.turn_s), "--image-size", str(options.image_size)]
        command += ["--methods", *METHODS, *(f"shared-{size}" for size in options.buckets)]
        command += [] if options.channels_last else ["--contiguous"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(num_threads), **RETAIN}
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank), str(num_ranks), str(num_threads)], env=environment)
            for rank in range(num_ranks)
        ]
        codes = []
        try:
            while len(codes) < num_ranks:
                codes = [code for rank in ranks if (code := rank.poll()) is not None]
                if any(codes):
                    raise SystemExit("a rank failed; its message is above")
                time.sleep(0.1)
        finally:
            for rank in ranks:
                rank.kill()
        return json.loads(out.read_text())


def summarize(measured, model, batch, num_ranks, num_threads):
    """Return one row per method: throughput, efficiency against the replicas of the same round, and the split."""
    share = batch / num_ranks
    turns = [turns for turns, _ in measured["ranks"]]
    rates = {
        name: [sum(share / of_rank[name][number][0] for of_rank in turns) for number in range(len(turns[0][name]))]
        for name in turns[0]
    }
    rows = []
    for name, of_rounds in rates.items():
        efficiencies = [rate / alone for rate, alone in zip(of_rounds, rates["replicas"], strict=True)]
        row = {"model": model, "batch": batch, "ranks": num_ranks, "threads": num_threads, "method": name}
        row["samples_per_s"] = statistics.median(of_rounds)
        row["step_s"] = batch / row["samples_per_s"]
        row["efficiency"] = statistics.median(efficiencies)
        row["efficiency_range"] = [min(efficiencies), max(efficiencies)]
        over_gloo = [rate / gloo for rate, gloo in zip(of_rounds, rates["gloo"], strict=True)]
        row["speedup_over_gloo"] = statistics.median(over_gloo)
        # All threads of a rank, helpers and gloo's included. Other load on the machine changes it less than the time.
        row["cpu_s"] = statistics.median(cpu_s for of_rank in turns for _, cpu_s in of_rank[name])
        for metric in SPLIT:
            values = [split[name][metric] for _, split in measured["ranks"] if metric in split[name]]
            if values:
                row[metric] = statistics.fmean(values)
        if row.get("communication_s"):
            row["hidden_fraction"] = max(0.0, 1 - row["exposed_communication_s"] / row["communication_s"])
        rows.append(row)
    return rows


def print_rows(rows):
    first = rows[0]
    print(f"\n{first['model']}, batch {first['batch']}, {first['ranks']} ranks x {first['threads']} threads")
    print(f"{'':12} {'samples/s':>10} {'step ms':>9} {'efficiency':>22} {'over gloo':>10} {'CPU ms':>9}  split in ms")
    for row in rows:
        low, high = row["efficiency_range"]
        split = ", ".join(f"{name[:-2]} {row[name] * 1e3:.1f}" for name in SPLIT if name in row)
        hidden = f"; {row['hidden_fraction']:.0%} of communication hidden" if "hidden_fraction" in row else ""
        print(
            f"{row['method']:12} {row['samples_per_s']:10.2f} {row['step_s'] * 1e3:9.1f} "
            f"{row['efficiency']:7.3f} ({low:.3f}-{high:.3f}) {row['speedup_over_gloo']:9.2f}x "
            f"{row['cpu_s'] * 1e3:9.1f}  {split}{hidden}",
            flush=True,
        )


def parse_point(text):
    model, batch, shape = text.split(":")
    num_ranks, num_threads = map(int, shape.split("x"))
    if int(batch) % num_ranks:
        raise SystemExit(f"{text}: {num_ranks} ranks do not divide a batch of {batch}")
    return model, int(batch), num_ranks, num_threads


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", nargs="+", default=["resnet18:8:2x1"], help="MODEL:GLOBAL_BATCH:RANKSxTHREADS")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn-s", type=float, default=3.0, help="seconds of each method in each round")
    parser.add_argument("--buckets", type=int, nargs="*", default=[], help="further bucket sizes in MiB")
    parser.add_argument("--contiguous", dest="channels_last", action="store_false", help="default: channels_last")
    parser.add_argument("--json")
    parser.add_argument("--rank", type=int, nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--methods", nargs="+", help=argparse.SUPPRESS)
    for name in ("--model", "--store", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = parse_options()
    if options.rank:
        run_rank(options)
        return
    rows = []
    for point in map(parse_point, options.points):
        measured = start_ranks(options, *point)
        of_point = summarize(measured, *point)
        rows.extend(of_point)
        print_rows(of_point)
        if options.json:
            Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
