#!/usr/bin/env bash
# Measure a whole node: thread-scaling and hybrid studies, tuning, malleable threads, and its GPU.
# usage: benchmarks/sixteen_cores.sh OUT_FOLDER [STEP...]
#   studies start control accuracy equal      the measuring itself (default)
#   infer train                               the gain of tuning; SEARCH=48s (training 80s) and MORE=24s of search for each workload
#   malleable overhead                        malleable widths; SECONDS_EACH=600 in all, ROUNDS=3
#   kernels                                   triad and product, compared with C
#   ceilings products primitives fft cg tune  of a GPU; MODELS=... of the primitives, FACTOR=8 times a CPU's batches
# Results in OUT_FOLDER are reused, so an interrupted run resumes. PYTHON names the interpreter.
set -euo pipefail
[ "$#" -gt 0 ] || { sed -n 2,8p "$0"; exit 2; }
out=$(realpath -m "$1"); shift
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
export PYTHONUNBUFFERED=1
mkdir -p "$out"
steps=("$@"); [ "${#steps[@]}" -gt 0 ] || steps=(studies start control accuracy equal)
cases() {  # of a mode, as tune_gain.py names them
  local mode=$1 workload
  for workload in resnet50:$mode:64 resnet18:$mode:64 resnext50_32x4d:$mode:32 alexnet:$mode:256 \
    transformer:$mode:32 lstm_ensemble:$mode:400:time_steps=100; do echo "$workload"; done
}
gain() {
  local mode=$1; shift
  # shellcheck disable=SC2046
  "$python" benchmarks/tune_gain.py $(cases "$mode") "$@" --starts "${STARTS:-1}" \
    --seconds "${SECONDS_EACH:-100000}" --store "$out/gain-store" --out "$out/tune_gain.json"
}
"$python" -m corewise.accelerate.kernels || true  # once, before anything is timed
for step in "${steps[@]}"; do
  echo "== $step"
  case "$step" in
    studies)
      "$python" -m corewise doctor --json > "$out/doctor.json"
      "$python" -m corewise run thread-scaling --store "$out/store"
      "$python" -m corewise run hybrid --store "$out/store"
      COLUMNS=120 "$python" -m corewise show --store "$out/store" | tee "$out/tables.txt" ;;
    start) "$python" benchmarks/start_of_trial.py --out "$out/start_of_trial.json" ;;
    control) "$python" benchmarks/control_side.py --out "$out/control_side.json" ;;
    accuracy) "$python" benchmarks/step_accuracy.py --out "$out/step_accuracy.json" ;;
    equal) "$python" benchmarks/equal_trials.py --out "$out/equal_trials.json" ;;
    infer) gain infer --budget "${SEARCH:-48s}" --also "lower-precision=${MORE:-24s}" ;;
    train) gain train --budget "${SEARCH:-80s}" --also "batch-statistics=${MORE:-24s}" --also "lower-precision=${MORE:-24s}" ;;
    malleable)
      "$python" benchmarks/malleable_gain.py --cores "$(nproc)" --seconds "${SECONDS_EACH:-600}" \
        --rounds "${ROUNDS:-3}" --out "$out/malleable_gain.json" ;;
    overhead) "$python" benchmarks/malleable_overhead.py --json "$out/malleable_overhead.json" ;;
    kernels)
      "$python" benchmarks/kernels_cpu.py --dtype float64 --size 4096 --rounds "${ROUNDS:-3}" --out "$out/kernels_cpu.json" ;;
    ceilings) "$python" -m corewise doctor --ceilings --json > "$out/ceilings.json" ;;
    products) "$python" benchmarks/kernels_gpu.py --out "$out/kernels_gpu.json" ;;
    primitives)
      # shellcheck disable=SC2086
      "$python" benchmarks/primitives_sum.py ${MODELS:+--models $MODELS} --device cuda --batch-factor "${FACTOR:-8}" --rounds 2 \
        --case-s "${CASE_S:-30}" --out "$out/primitives_gpu.json" ;;
    fft) "$python" benchmarks/fft.py --device cuda --exponents 31 --repeats 3 --out "$out/fft_gpu.json" ;;
    cg) "$python" benchmarks/cg_gpu.py --out "$out/cg_gpu.json" ;;
    tune)
      "$python" -m corewise tune resnet50 --batch 64 --set device=cuda --budget "${SEARCH:-60s}" \
        --store "$out/tune-store" -o "$out/tuned.yaml" --json > "$out/tune.json" ;;
    *) echo "unknown step $step" >&2; exit 2 ;;
  esac
done
