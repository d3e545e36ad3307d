"""torch's compiler among the ranks of one trial: the first compiles, the others take what it leaves.

Measured side: standard library and torch only, Python 3.9.

Left to themselves, sixteen ranks put the same dozen questions about the CPU to a C++ compiler, each under a
lock and followed by an import of torch: more than two minutes before anything is compiled (torch 2.11).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any, Iterator

import torch

from corewise.runtimes.base import RankContext
from corewise.runtimes.torch.settings import CXX_COMPILERS, Settings

ASKED, COMPILED, FAILED = "compiler-asked", "compiled", "not-compiled"
LONGEST_WAIT_S = 900.0  # for the first rank; whoever started the trial has a limit of its own
POLL_S = 0.05


def prepare_compiler(context: RankContext) -> None:
    """Learn once, by the first rank, what the C++ compiler can do for this CPU; yeses are kept for ever."""
    if not any(map(shutil.which, CXX_COMPILERS)):
        return  # the settings refuse the trial with the reason
    os.environ.setdefault("TORCH_WARM_POOL", "0")  # of processes that compile for GPUs
    from torch._inductor import cpu_vec_isa

    keep_answers(cpu_vec_isa.VecISA, _answers_folder())
    if context.num_ranks > 1:
        asked = Path(context.rendezvous) / ASKED
        with _first_alone(asked, asked, context.rank == 0):
            cpu_vec_isa.pick_vec_isa()


@contextlib.contextmanager
def compiled_in_turn(settings: Settings, context: RankContext) -> Iterator[None]:
    """Around the first call: of replicas, the first compiles alone and the others find its code in the cache.

    Ranks that train together cannot: their first calls wait for each other.
    """
    alone = settings.execution == "compile" and not settings.training and context.num_ranks > 1
    if not alone or not context.cache:
        yield
        return
    with _first_alone(Path(context.cache) / COMPILED, Path(context.rendezvous) / FAILED, context.rank == 0):
        yield


@contextlib.contextmanager
def _first_alone(done: Path, failed: Path, is_first: bool) -> Iterator[None]:
    """The first rank goes through, then all the others; also when it has failed."""
    if not is_first:
        deadline = time.monotonic() + LONGEST_WAIT_S
        while not (done.exists() or failed.exists()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        yield
        return
    told = failed
    try:
        yield
        told = done
    finally:
        told.parent.mkdir(parents=True, exist_ok=True)
        told.touch()


def keep_answers(vector_unit: Any, folder: Path) -> None:
    """Let the compiler's checks of vector units be answered from the folder; a no is asked again."""
    ask = getattr(vector_unit, "check_build", None)
    if ask is None or not hasattr(
        vector_unit, "build_arch_flags"
    ):  # another version of torch: it asks as it does
        return

    def answered(self: Any, code: str) -> bool:
        kept = folder / _question(code, str(self.build_arch_flags()))
        if kept.exists():
            return True
        answer = bool(ask(self, code))
        if answer:
            with contextlib.suppress(OSError):  # nothing is lost but time
                folder.mkdir(parents=True, exist_ok=True)
                kept.touch()
        return answer

    vector_unit.check_build = answered


def _question(code: str, flags: str) -> str:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *CXX_COMPILERS))), "")
    size = os.stat(os.path.realpath(compiler)).st_size if compiler else 0
    asked = "\n".join((torch.__version__, os.path.realpath(compiler), str(size), flags, code))
    return hashlib.sha256(asked.encode()).hexdigest()[:32]


def _answers_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "corewise" / "compiler-answers"
