"""Compare STREAM's triad with a C loop, and matrix products with the BLAS libraries that C can call here.

Each side is a separate process on the same CPUs with as many threads; they take turns. STREAM's rules apply:
arrays of at least four times the last-level caches, best of ten. This script compiles the C code with
`cc -O3 -march=native -fopenmp`. C calls BLAS libraries through their Fortran interface: those of the system,
numpy's own, the MKL in torch, and any given with --blas.

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

from kernel_runs import Side, compare_speed, describe_machine, find_best_s, prepare_kernel_job, serve, take_turns

from corewise.measured.workloads.kernels.stream import compute_default_size_bytes

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
  /* Arrays with equal offsets in their pages conflict in the caches. */
  static size_t offset = 0;
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


def compile_program(folder: Path, source: str, **macros: str) -> Path:
    """Compile a program with these macros."""
    name = "-".join(["gemm" if "dlsym" in source else "triad", *macros.values()]).replace(" ", "")
    code, program = folder / f"{name}.c", folder / name
    code.write_text(source)
    options = [f"-D{key}={value}" for key, value in macros.items()]
    subprocess.run(
        ["cc", "-O3", "-march=native", "-fopenmp", *options, str(code), "-o", str(program), "-ldl"], check=True
    )
    return program


def has_streaming_stores(program: Path) -> bool | None:
    """Return whether the program has streaming stores; None without objdump."""
    if shutil.which("objdump") is None:
        return None
    code = subprocess.run(["objdump", "-d", str(program)], check=True, capture_output=True, text=True).stdout
    return "movnt" in code or "stnp" in code


def find_blas_libraries(given: list[str]) -> dict[str, tuple[str, str, str]]:
    """Find libraries by name: path, pattern of the `gemm` symbol, and integer type."""
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


def start_our_side(
    runtime: str, kernel: str, dtype: str, args: dict[str, Any], env: dict[str, str], suffix: str = ""
) -> Side:
    arguments = [runtime, kernel, dtype, env["OMP_NUM_THREADS"], json.dumps(args)]
    return Side(f"corewise {runtime}{suffix}", [sys.executable, str(HERE), "--serve", *arguments], env)


def measure_triad(folder: Path, dtype: str, size_bytes: int, rounds: int, env: dict[str, str]) -> dict[str, Any]:
    program = compile_program(folder, TRIAD, REAL=REAL[dtype])
    args = {"operation": "triad", "size_bytes": size_bytes}
    sides = [
        start_our_side("torch", "stream", dtype, args, env),
        Side("C loop", [str(program), str(size_bytes)], env),
        Side("C loop, huge pages", [str(program), str(size_bytes), "huge"], env),
        start_our_side("torch", "stream", dtype, args, {**env, "THP_MEM_ALLOC_ENABLE": "1"}, ", huge pages"),
    ]
    # numpy streams in one thread.
    if env["OMP_NUM_THREADS"] == "1":
        sides.append(start_our_side("numpy", "stream", dtype, args, env))
    take_turns(sides, rounds, 10)
    print(f"\ntriad {dtype}, {size_bytes / 2**20:.0f} MiB an array, best of ten, {rounds} rounds")
    unit = 3 * size_bytes / 1e9
    streaming = has_streaming_stores(program)
    print(f"non-temporal stores in the C loop: {'not known' if streaming is None else streaming}")
    return {"streaming_stores_in_c": streaming, **_show_sides(sides, sides[1], unit, "GB/s")}


def measure_gemm(
    folder: Path, dtype: str, size: int, rounds: int, env: dict[str, str], libraries: dict[str, Any]
) -> dict[str, Any]:
    sides = [start_our_side(runtime, "gemm", dtype, {"size": size}, env) for runtime in ("torch", "numpy")]
    for name, (path, symbol, whole) in libraries.items():
        program = compile_program(folder, GEMM, REAL=REAL[dtype], INT=whole)
        symbol = symbol.format(LETTER[dtype])
        sides.append(Side(f"C, {name}", [str(program), path, symbol, str(size)], env))
    take_turns(sides, rounds, 5)
    best = min(sides[2:], key=find_best_s)
    print(f"\nproduct {dtype}, {size}, best of {rounds} turns of 5; best from C: {best.name}")
    figures = _show_sides(sides, best, 2 * size**3 / 1e9, "Gflop/s")
    named = {side.name: side for side in sides}
    for mine, library in OWN_LIBRARIES.items():
        # The ratio shows the overhead of our kernel and the framework around the library's call.
        if library in named:
            by_best, by_round = compare_speed(named[mine], named[library])
            print(f"{mine} of {library}: {by_best:.3f} (best), {by_round:.3f} (median of rounds)")
            figures["sides"][mine]["of_own_library"] = by_best
    return figures


def _show_sides(sides: list[Side], peer: Side, work: float, unit: str) -> dict[str, Any]:
    print(f"{'':28} {unit:>9} {'of ' + peer.name + ' (best)':>36} {'(median of rounds)':>20}")
    rows = {}
    for side in sides:
        by_best, by_round = compare_speed(side, peer)
        print(f"{side.name:28} {work / find_best_s(side):9.2f} {by_best:36.3f} {by_round:20.3f}")
        rows[side.name] = {"rate": work / find_best_s(side), "of_peer": by_best, "of_peer_by_round": by_round}
        rows[side.name]["turns_s"] = side.turns
        side.close()
    return {"peer": peer.name, "unit": unit, "sides": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", type=int, default=2048, help="of the matrices")
    parser.add_argument("--size-bytes", type=int, default=compute_default_size_bytes(), help="of each array")
    parser.add_argument("--blas", action="append", default=[], metavar="FILE", help="a further BLAS library")
    parser.add_argument("--only", choices=("triad", "gemm"))
    parser.add_argument("--dtype", action="append", choices=tuple(REAL))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    threads = str(args.threads)
    env = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    env["BLIS_NUM_THREADS"] = threads
    figures: dict[str, Any] = {"machine": describe_machine(), "num_threads": args.threads}
    print(figures["machine"], f"; {args.threads} threads")
    with tempfile.TemporaryDirectory() as name:
        for dtype in args.dtype or REAL:
            if args.only != "gemm":
                figures[f"triad {dtype}"] = measure_triad(Path(name), dtype, args.size_bytes, args.rounds, env)
            if args.only != "triad":
                figures[f"gemm {dtype}"] = measure_gemm(
                    Path(name), dtype, args.size, args.rounds, env, find_blas_libraries(args.blas)
                )
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        runtime, kernel, dtype, num_threads, own = sys.argv[2:]
        serve(prepare_kernel_job(kernel, runtime, dtype, int(num_threads), json.loads(own)))
    else:
        main()
