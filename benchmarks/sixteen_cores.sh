#!/usr/bin/env bash
# The thread-scaling and hybrid studies of AlexNet and ResNet-50 on the whole node, and the other figures.
# usage: benchmarks/sixteen_cores.sh OUT_FOLDER [STEP...]   steps: studies start control accuracy equal
set -euo pipefail
out=$(realpath -m "$1"); shift
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
mkdir -p "$out"
steps=("$@"); [ "${#steps[@]}" -gt 0 ] || steps=(studies start control accuracy equal)
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
    *) echo "unknown step $step" >&2; exit 2 ;;
  esac
done
