#!/usr/bin/env bash
# The GPU part of fairssl's checks and figures, in under six minutes from a bare machine:
#
#     bash benchmarks/perf/gpu_check.sh
#
# Needs Python with torch, torchvision, timm, scikit-learn, pandas, rich and typer. What else fairssl needs comes from the
# wheels in the folder $WHEELS if that is set. $OUT (perf-out) receives a JSON file per measurement, at once, tables.txt and
# check.log. $FAIRSSL_DATA, a folder that holds UTKFace, gives the table slice its images, which are drawn otherwise.
# Exit 1 if anything failed or ran out of time; the rest is done all the same. No step begins once $LIMIT seconds (350) have
# passed, and none goes on longer.
set -uo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
out=${OUT:-perf-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
deadline=${LIMIT:-350}
failed=()

# step NAME SECONDS COMMAND...: run it under a time limit, keep what it prints, go on whatever happens
step() {
  local name=$1 limit=$2 started=$SECONDS rc=0
  shift 2
  if [ "$limit" -gt $((deadline - SECONDS)) ]; then limit=$((deadline - SECONDS)); fi
  if [ "$limit" -le 0 ]; then
    echo "$name: not begun, no time was left"
    failed+=("$name")
    return
  fi
  printf '\n== %s\n' "$name" | tee -a "$out/check.log" >>"$out/tables.txt"
  timeout --kill-after=10 "$limit" "$@" >>"$out/tables.txt" 2>>"$out/check.log" || rc=$?
  echo "$name: exit $rc after $((SECONDS - started)) s"
  if [ "$rc" -ne 0 ]; then
    failed+=("$name")
    tail -n 15 "$out/check.log"
  fi
}

pip() {
  "$python" -m pip --disable-pip-version-check install --quiet --no-deps "$@"
}

imports() { # from another folder, so that what is here does not pass for what is installed
  (cd / && "$python" -c 'import fairssl.api, fairssl_plugins; from fairssl import registry; assert registry.methods.where()')
}

if [ -n "${WHEELS:-}" ]; then
  pip --no-index "$WHEELS"/*.whl || failed+=(wheels)
fi
if ! imports 2>/dev/null; then
  pip --no-build-isolation -e . || pip -e .
fi
if ! imports || ! "$python" -c 'import torch; assert torch.cuda.is_available(), "no GPU"'; then
  echo "gpu_check: fairssl cannot be imported, or there is no GPU; nothing was measured" >&2
  exit 1
fi
: >"$out/tables.txt"
: >"$out/check.log"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true

if "$python" -c 'import pytest' 2>/dev/null; then
  step tests 90 "$python" -m pytest -q tests/gpu
else
  echo "tests: skipped, there is no pytest"
fi

perf() { # perf NAME SECONDS SCRIPT FLAGS...
  local name=$1 limit=$2 script=$3
  shift 3
  step "$name" "$limit" "$python" "benchmarks/perf/$script.py" --json "$out/$name.json" "$@"
}

source=(--shape utkface)
for found in "${FAIRSSL_DATA:-/nowhere}"/UTKFace "${FAIRSSL_DATA:-/nowhere}"/utkface*.zip; do
  if [ -e "$found" ]; then source=(--dataset utkface); fi
done

perf step64 90 step --sizes 64 --seconds 0.3
perf packing 60 packing
perf table 180 stages --table "${source[@]}"
perf step128 45 step --sizes 128 --batches 128 --seconds 0.3 --loop ""
perf step224 60 step --sizes 224 --batches 128 --seconds 0.3 --loop ""

cat "$out/tables.txt"
echo
echo "gpu_check: $SECONDS s; results in $out"
if [ "${#failed[@]}" -ne 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
