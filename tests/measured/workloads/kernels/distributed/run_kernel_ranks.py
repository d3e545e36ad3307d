"""Run distributed kernels on forked ranks with gloo: `run_kernel_ranks.py FOLDER NUM_RANKS...`.

Every rank of every group writes its results to FOLDER/GROUP-RANK.npz, with NUM_RANKS as the name of the group, and its
facts to a file of JSON next to it.
"""

import dataclasses
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.communication.lone_communicator import LoneCommunicator
from corewise.measured.runtimes.kernel_job import prepare_kernel
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.runtimes.torch.arrays import TorchArrays
from corewise.measured.runtimes.torch.communication.torch_communicator import TorchCommunicator
from corewise.measured.workloads.registry import find_workload

# The name of a scenario: workload, dtype and parameters. 36 divides by 1, 4 and 9; 101 and 7 divide by neither 2 nor 3.
SCENARIOS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "cg": ("distributed_cg", "float64", {"size": 101, "iterations": 20}),
    "cg_checkpoints": ("distributed_cg", "float64", {"size": 100, "iterations": 20, "checkpoint_every": 6}),
    "fft_interleaved": ("distributed_fft", "complex128", {"size": 36 * 35}),
    "fft_natural": ("distributed_fft", "complex128", {"size": 36 * 35, "order": "natural"}),
    "fft_short": ("distributed_fft", "complex64", {"size": 36}),
    # Seven by seven tiles, of which the last are smaller.
    "product": ("distributed_product", "float64", {"size": 61, "tile": 9}),
    # Two ranks share every tile of C.
    "product_of_teams": ("distributed_product", "float32", {"size": 60, "tile": 15}),
}
REFUSALS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "cg_of_few_rows": ("distributed_cg", "float64", {"size": 1}),
    "fft_of_a_size_that_does_not_divide": ("distributed_fft", "complex128", {"size": 34}),
    "product_of_one_tile": ("distributed_product", "float64", {"size": 8, "tile": 8}),
    "product_in_an_unusable_folder": ("distributed_product", "float64", {"size": 8, "tile": 2, "folder": "/proc/none"}),
    "cg_checkpoint_in_an_unusable_folder": (
        "distributed_cg",
        "float64",
        {"size": 64, "checkpoint_every": 5, "checkpoint": "/proc/none/cg"},
    ),
}


class Rank:
    """One rank, with a communicator for all scenarios."""

    def __init__(self, rank: int, num_ranks: int, folder: Path) -> None:
        self.folder = folder / f"{num_ranks}-ranks"
        self.context = RankContext(rank, num_ranks, str(self.folder), 1)
        self.messages: Any = LoneCommunicator() if num_ranks == 1 else TorchCommunicator(self.context)
        # A refused kernel closes its communicator; this one stays open for the next scenario.
        self.close_messages = self.messages.close
        self.messages.close = lambda: None

    def prepare(self, scenario: tuple[str, str, dict[str, Any]], runtime: str) -> Any:
        name, dtype, args = scenario
        kernel = find_workload(name)
        point = {"workload": name, "mode": "infer", "runtime": runtime, "dtype": dtype, "batch": 1}
        point["processes"] = self.context.num_ranks
        params = TrialParameters.from_mapping({**point, **{f"args.{key}": value for key, value in args.items()}})
        arrays: Any = TorchArrays() if runtime == "torch" else NumpyArrays()
        return prepare_kernel(kernel, arrays, params, self.context, dict, lambda: self.messages)  # type: ignore[arg-type]

    def run(self, scenario: tuple[str, str, dict[str, Any]], runtime: str) -> tuple[dict[str, Any], dict[str, Any]]:
        job = self.prepare(scenario, runtime)
        check = job.check()
        job.step()
        facts = {
            "check_passed": check.passed,
            "error": check.error,
            "tolerance": check.tolerance,
            "independent": job.independent,
            "samples_per_step": job.samples_per_step,
            "metrics": job.collect_metrics(0.0),
            "facts": {key: value for key, value in job.read_facts().items() if key != "residual_history"},
        }
        values = self.read_values(job.run)
        self.messages.barrier()
        # The communicator stays open for the next scenario.
        job.run.close()
        return facts, values

    def read_values(self, run: Any) -> dict[str, Any]:
        name = type(run).__name__
        if name == "DistributedCgRun":
            solver = run._system.solver
            return {"x": run._arrays.to_host(solver.x), "residuals": solver.read_residuals()}
        if name == "SpreadTransform":
            return {"signal": run._arrays.to_host(run._x), "transform": run._arrays.to_host(run._out)}
        factors = run._product._factors
        return {matrix: read_matrix(getattr(factors, matrix)) for matrix in "abc"}

    def read_refusal_of_separate_folders(self) -> str:
        """Give every rank its own folder for the tiles of one product, as on nodes without a shared file system."""
        own = self.folder / f"only-of-{self.context.rank}"
        own.mkdir()
        shared, self.context = self.context, dataclasses.replace(self.context, rendezvous=str(own))
        refusal = self.read_refusal(SCENARIOS["product"])
        self.context = shared
        return refusal

    def read_refusal(self, scenario: tuple[str, str, dict[str, Any]]) -> str:
        try:
            self.prepare(scenario, "numpy")
        except Infeasible as problem:
            return str(problem)
        return ""


def read_matrix(matrix: Any) -> Any:
    whole = np.zeros((matrix.grid.num_rows, matrix.grid.num_columns), matrix.dtype)
    for row, column in matrix.grid.iterate_tiles():
        shape = matrix.grid.compute_tile_shape(row, column)
        top, left = row * matrix.grid.tile, column * matrix.grid.tile
        tile = matrix.read((row, column), np.empty(shape[0] * shape[1], matrix.dtype))
        whole[top : top + shape[0], left : left + shape[1]] = tile
    return whole


def be_rank(rank: int, num_ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    me = Rank(rank, num_ranks, folder)
    facts: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for runtime in ("torch", "numpy"):
        for name, scenario in SCENARIOS.items():
            found, arrays = me.run(scenario, runtime)
            facts[f"{runtime} {name}"] = found
            values.update({f"{runtime} {name} {key}": array for key, array in arrays.items()})
    facts["refusals"] = {name: me.read_refusal(scenario) for name, scenario in REFUSALS.items()}
    facts["refusals"]["product_in_separate_folders"] = me.read_refusal_of_separate_folders()
    me.close_messages()
    np.savez(folder / f"{num_ranks}-{rank}.npz", **values)
    (folder / f"{num_ranks}-{rank}.json").write_text(json.dumps(facts))


def fork_ranks(num_ranks: int, folder: Path) -> bool:
    (folder / f"{num_ranks}-ranks").mkdir()
    children = []
    for rank in range(num_ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                be_rank(rank, num_ranks, folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    return all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)


if __name__ == "__main__":
    results = [fork_ranks(int(count), Path(sys.argv[1])) for count in sys.argv[2:]]
    sys.exit(0 if all(results) else 1)
