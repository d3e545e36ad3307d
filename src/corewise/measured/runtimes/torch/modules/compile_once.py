"""Compile once among the ranks of a trial: the first rank compiles, the others use its cached results.

Measured side: standard library and torch only, Python 3.9.

Otherwise sixteen ranks run the same dozen checks of the CPU with a C++ compiler, each under a lock and with
an import of torch. That takes more than two minutes before anything is compiled (torch 2.11).
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

from corewise.cache_folder import open_cache_folder
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.torch.settings import CXX_COMPILERS, Settings

# The folder of the compiler's answers within the cache.
ANSWERS_FOLDER = "compiler-answers"
PROBED, COMPILED, FAILED = "compiler-asked", "compiled", "not-compiled"
# How long ranks wait for the first one. The trial has its own time limit.
MAX_WAIT_S = 900.0
POLL_S = 0.05


def prepare_compiler(context: RankContext) -> None:
    """Let the first rank check what the C++ compiler supports on this CPU; positive results are cached."""
    # Without a compiler, the settings refuse the trial with the reason.
    if not any(map(shutil.which, CXX_COMPILERS)):
        return
    # The pool of processes is only for compiling GPU code.
    os.environ.setdefault("TORCH_WARM_POOL", "0")
    from torch._inductor import cpu_vec_isa

    # Without a safe folder, only time is lost.
    with contextlib.suppress(OSError):
        cache_answers(cpu_vec_isa.VecISA, open_cache_folder(ANSWERS_FOLDER))
    if context.num_ranks > 1:
        marker = Path(context.rendezvous) / PROBED
        with _run_first_rank_first(marker, marker, context.rank == 0):
            cpu_vec_isa.pick_vec_isa()


@contextlib.contextmanager
def compile_in_turn(settings: Settings, context: RankContext) -> Iterator[None]:
    """Let the first replica compile in its first call before the others, which then hit its cache.

    Data-parallel ranks cannot take turns: their first calls wait for each other.
    """
    are_replicas = settings.execution == "compile" and not settings.training and context.num_ranks > 1
    if not are_replicas or not context.cache:
        yield
        return
    with _run_first_rank_first(Path(context.cache) / COMPILED, Path(context.rendezvous) / FAILED, context.rank == 0):
        yield


@contextlib.contextmanager
def _run_first_rank_first(done: Path, failed: Path, is_first: bool) -> Iterator[None]:
    """Run the block on the first rank, then, even if that failed, on all others."""
    if not is_first:
        deadline = time.monotonic() + MAX_WAIT_S
        while not (done.exists() or failed.exists()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        yield
        return
    marker = failed
    try:
        yield
        marker = done
    finally:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def cache_answers(vector_unit: Any, folder: Path) -> None:
    """Cache positive results of the compiler's checks of vector units in the folder."""
    check_build = getattr(vector_unit, "check_build", None)
    # Other versions of torch check differently.
    if check_build is None or not hasattr(vector_unit, "build_arch_flags"):
        return

    def check_cached(self: Any, code: str) -> bool:
        cached = folder / _hash_question(code, str(self.build_arch_flags()))
        if cached.exists():
            return True
        is_supported = bool(check_build(self, code))
        if is_supported:
            # Without the cache, only time is lost.
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                cached.touch()
        return is_supported

    vector_unit.check_build = check_cached


def _hash_question(code: str, flags: str) -> str:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *CXX_COMPILERS))), "")
    size = os.stat(os.path.realpath(compiler)).st_size if compiler else 0
    question = "\n".join((torch.__version__, os.path.realpath(compiler), str(size), flags, code))
    return hashlib.sha256(question.encode()).hexdigest()[:32]
