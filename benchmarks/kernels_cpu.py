"""STREAM's triad against a C loop, and products of matrices against the BLAS libraries that C can call here.

Each side is a process of its own on the same CPUs with as many threads; they take turns. STREAM's rules:
arrays of at least four times the last-level caches, best of ten. The C code is written and compiled here with
`cc -O3 -march=native -fopenmp`; BLAS libraries are called from C through their Fortran interface: those of
the system, numpy's own, the MKL in torch, and any given with --blas.

  python benchmarks/kernels_cpu.py --out kernels_cpu.json
  python benchmarks/kernels_cpu.py --blas /opt/intel/mkl/lib/libmkl_rt.so.2 --only gemm
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernel_runs import Side, against, best_s, kernel_job, machine_line, serve, take_turns

from corewise.workloads.kernels.stream import default_size_bytes

HERE = Path(__file__).resolve()
TURNS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#define HUGE_PAGE ((size_t)2 << 20)

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
static void step(void);
static void turns(void) {
  int n;
  step();
  puts("ready");
  fflush(stdout);
  while (scanf("%d", &n) == 1) {
    putchar('[');
    for (int i = 0; i < n; i++) {
      double began = now();
      step();
      printf("%s%.9f", i ? ", " : "", now() - began);
    }
    puts("]");
    fflush(stdout);
  }
}
static REAL noise(uint64_t i) {
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull;
  x ^= x >> 31; x *= 0xBF58476D1CE4E5B9ull; x ^= x >> 27;
  return (REAL)((double)(x >> 11) / 9007199254740992.0 * 2 - 1);
}
static REAL *array(size_t n, int huge) {
  static size_t offset = 0;  /* arrays that begin alike in their pages get in each other's way */
  size_t bytes = (n * sizeof(REAL) + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE + HUGE_PAGE;
  char *start = huge ? aligned_alloc(HUGE_PAGE, bytes) : malloc(bytes);
  if (!start) abort();
  if (huge) madvise(start, bytes, MADV_HUGEPAGE);
  REAL *p = (REAL *)(start + offset);
  offset += 1088;
  #pragma omp parallel for schedule(static)
  for (size_t i = 0; i < n; i++) p[i] = noise(i);
  return p;
}
"""
TRIAD = (
    TURNS
    + r"""
static REAL *a, *b, *c;
static size_t n;
static void triad(REAL *restrict a, const REAL *restrict b, const REAL *restrict c, REAL s) {
  #pragma omp parallel for schedule(static)
  for (size_t i = 0; i < n; i++) a[i] = b[i] + s * c[i];
}
static void step(void) { triad(a, b, c, 3); }
int main(int argc, char **argv) {
  int huge = argc > 2;
  n = strtoull(argv[1], 0, 10) / sizeof(REAL);
  a = array(n, huge); b = array(n, huge); c = array(n, huge);
  turns();
  return 0;
}
"""
)
GEMM = (
    TURNS
    + r"""
static REAL *a, *b, *c, one = 1, zero = 0;
static INT n;
static void (*gemm)(char *, char *, INT *, INT *, INT *, REAL *, REAL *, INT *, REAL *, INT *, REAL *, REAL *,
                    INT *);
static void step(void) { gemm("N", "N", &n, &n, &n, &one, a, &n, b, &n, &zero, c, &n); }
int main(int argc, char **argv) {
  n = atoi(argv[3]);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  *(void **)&gemm = dlsym(library, argv[2]);
  if (!gemm) { fprintf(stderr, "%s has no %s\n", argv[1], argv[2]); return 1; }
  a = array((size_t)n * n, 0); b = array((size_t)n * n, 0); c = array((size_t)n * n, 0);
  turns();
  return 0;
}
"""
)
REAL = {"float64": "double", "float32": "float"}
LETTER = {"float64": "d", "float32": "s"}
OWN_LIBRARIES = {"corewise torch": "C, torch's MKL", "corewise numpy": "C, numpy's OpenBLAS"}
SYSTEM_LIBRARIES = ("libopenblas.so.0", "libblis.so.4", "libmkl_rt.so.3", "libmkl_rt.so.2")


def compiled(folder: Path, source: str, **macros: str) -> Path:
    """The program, built as the comparison asks."""
    name = "-".join(["gemm" if "dlsym" in source else "triad", *macros.values()]).replace(" ", "")
    code, program = folder / f"{name}.c", folder / name
    code.write_text(source)
    options = [f"-D{key}={value}" for key, value in macros.items()]
    subprocess.run(
        ["cc", "-O3", "-march=native", "-fopenmp", *options, str(code), "-o", str(program), "-ldl"],
        check=True,
    )
    return program


def has_streaming_stores(program: Path) -> bool | None:
    """Whether the compiler wrote past the caches in it; None where objdump is not there to tell."""
    if shutil.which("objdump") is None:
        return None
    code = subprocess.run(["objdump", "-d", str(program)], check=True, capture_output=True, text=True).stdout
    return "movnt" in code or "stnp" in code


def blas_libraries(given: list[str]) -> dict[str, tuple[str, str, str]]:
    """Name -> library, what stands around `gemm` in its symbols, and its whole numbers."""
    import numpy
    import torch

    found = {}
    for path in (*SYSTEM_LIBRARIES, *given):
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
        except OSError as problem:
            if path in given:
                raise SystemExit(f"--blas {path}: {problem}") from None
            continue
        found[Path(path).name.split(".so")[0]] = (path, "{}gemm_", "int")
    for path in Path(numpy.__file__).parent.parent.glob("numpy.libs/libscipy_openblas64_*.so"):
        found["numpy's OpenBLAS"] = (str(path), "scipy_{}gemm_64_", "int64_t")
    inside = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if inside.exists() and torch.backends.mkl.is_available():
        found["torch's MKL"] = (str(inside), "{}gemm_", "int")
    return found


def ours(
    runtime: str, kernel: str, dtype: str, args: dict[str, Any], env: dict[str, str], suffix: str = ""
) -> Side:
    words = [runtime, kernel, dtype, env["OMP_NUM_THREADS"], json.dumps(args)]
    return Side(f"corewise {runtime}{suffix}", [sys.executable, str(HERE), "--serve", *words], env)


def measure_triad(
    folder: Path, dtype: str, size_bytes: int, rounds: int, env: dict[str, str]
) -> dict[str, Any]:
    program = compiled(folder, TRIAD, REAL=REAL[dtype])
    args = {"operation": "triad", "size_bytes": size_bytes}
    sides = [
        ours("torch", "stream", dtype, args, env),
        Side("C loop", [str(program), str(size_bytes)], env),
        Side("C loop, huge pages", [str(program), str(size_bytes), "huge"], env),
        ours("torch", "stream", dtype, args, {**env, "THP_MEM_ALLOC_ENABLE": "1"}, ", huge pages"),
    ]
    if env["OMP_NUM_THREADS"] == "1":  # numpy streams in one thread
        sides.append(ours("numpy", "stream", dtype, args, env))
    take_turns(sides, rounds, 10)
    print(f"\ntriad {dtype}, {size_bytes / 2**20:.0f} MiB an array, best of ten, {rounds} rounds")
    unit = 3 * size_bytes / 1e9
    streaming = has_streaming_stores(program)
    print(f"non-temporal stores in the C loop: {'not known' if streaming is None else streaming}")
    return {"streaming_stores_in_c": streaming, **_table(sides, sides[1], unit, "GB/s")}


def measure_gemm(
    folder: Path, dtype: str, size: int, rounds: int, env: dict[str, str], libraries: dict[str, Any]
) -> dict[str, Any]:
    sides = [ours(runtime, "gemm", dtype, {"size": size}, env) for runtime in ("torch", "numpy")]
    for name, (path, symbol, whole) in libraries.items():
        program = compiled(folder, GEMM, REAL=REAL[dtype], INT=whole)
        symbol = symbol.format(LETTER[dtype])
        sides.append(Side(f"C, {name}", [str(program), path, symbol, str(size)], env))
    take_turns(sides, rounds, 5)
    best = min(sides[2:], key=best_s)
    print(f"\nproduct {dtype}, {size}, best of {rounds} turns of 5; best from C: {best.name}")
    figures = _table(sides, best, 2 * size**3 / 1e9, "Gflop/s")
    named = {side.name: side for side in sides}
    for mine, library in OWN_LIBRARIES.items():
        if library in named:  # what our kernel and the framework put around the library's call
            by_best, by_round = against(named[mine], named[library])
            print(f"{mine} of {library}: {by_best:.3f} (best), {by_round:.3f} (median of rounds)")
            figures["sides"][mine]["of_own_library"] = by_best
    return figures


def _table(sides: list[Side], peer: Side, work: float, unit: str) -> dict[str, Any]:
    print(f"{'':28} {unit:>9} {'of ' + peer.name + ' (best)':>36} {'(median of rounds)':>20}")
    rows = {}
    for side in sides:
        by_best, by_round = against(side, peer)
        print(f"{side.name:28} {work / best_s(side):9.2f} {by_best:36.3f} {by_round:20.3f}")
        rows[side.name] = {"rate": work / best_s(side), "of_peer": by_best, "of_peer_by_round": by_round}
        rows[side.name]["turns_s"] = side.turns
        side.close()
    return {"peer": peer.name, "unit": unit, "sides": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", type=int, default=2048, help="of the matrices")
    parser.add_argument("--size-bytes", type=int, default=default_size_bytes(), help="of each array")
    parser.add_argument("--blas", action="append", default=[], metavar="FILE", help="a BLAS library more")
    parser.add_argument("--only", choices=("triad", "gemm"))
    parser.add_argument("--dtype", action="append", choices=tuple(REAL))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    threads = str(args.threads)
    env = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    env["BLIS_NUM_THREADS"] = threads
    figures: dict[str, Any] = {"machine": machine_line(), "num_threads": args.threads}
    print(figures["machine"], f"; {args.threads} threads")
    with tempfile.TemporaryDirectory() as name:
        for dtype in args.dtype or REAL:
            if args.only != "gemm":
                figures[f"triad {dtype}"] = measure_triad(
                    Path(name), dtype, args.size_bytes, args.rounds, env
                )
            if args.only != "triad":
                figures[f"gemm {dtype}"] = measure_gemm(
                    Path(name), dtype, args.size, args.rounds, env, blas_libraries(args.blas)
                )
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        runtime, kernel, dtype, num_threads, own = sys.argv[2:]
        serve(kernel_job(kernel, runtime, dtype, int(num_threads), json.loads(own)))
    else:
        main()
