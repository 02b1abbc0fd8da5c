#!/usr/bin/env bash
# The GPU part of fairssl's checks and figures, in under ten minutes from a bare machine:
#
#     bash benchmarks/perf/gpu_check.sh [NAME...]       all of: doctor step packing table tests
#
# They are done in this order, what is wanted most first; `table tests` in a second call, if one has no time for all.
# Needs Python with torch, torchvision, timm, scikit-learn, pandas, rich and typer. What else fairssl needs comes from the
# wheels in the folder $WHEELS if that is set: put fairssl's own there too where setuptools is old (`pip wheel --no-deps .`),
# and pytest's, without which the tests are not run (with pytest-timeout's they end in time themselves). Augmentation is
# compiled only where there are a C compiler and Python's headers; the tables say whether it was. $OUT (perf-out) receives
# a JSON file per measurement, a row at once as it is known, tables.txt and check.log. $FAIRSSL_DATA, a folder that holds
# UTKFace: `table` trains the grid paper_utkface_fast on ethnicity, four seeds at once, into $OUT/runs, and makes a board of
# what has ended, $OUT/board; the same $OUT goes on from there. Without it, `table` times a slice of such a table on drawn
# images. Exit 1 if anything failed or ran out of time; the rest is done all the same. No step begins once $LIMIT seconds
# (580) have passed, and none goes on longer.
set -uo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
deadline=${LIMIT:-580}
failed=()
only=("$@")
known=" doctor step packing table tests "
for name in "$@"; do
  if [[ "$known" != *" $name "* ]]; then
    echo "gpu_check: unknown name '$name'; known:${known% }" >&2
    exit 2
  fi
done
out=${OUT:-perf-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)

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
  timeout --kill-after=20 "$limit" "$@" >>"$out/tables.txt" 2>>"$out/check.log" || rc=$?
  echo "$name: exit $rc after $((SECONDS - started)) s"
  if [ "$rc" -ne 0 ]; then
    failed+=("$name")
    tail -n 15 "$out/check.log"
  fi
}

pip() {
  PIP_BREAK_SYSTEM_PACKAGES=1 "$python" -m pip --disable-pip-version-check install --quiet --no-deps "$@"
}

# from another folder, so that what is here does not pass for what is installed; 3 if there is no torch or no GPU
ready() {
  (cd / && "$python" -c '
import importlib.util, sys
if importlib.util.find_spec("torch") is None: sys.exit(3)
import torch
if not torch.cuda.is_available(): sys.exit(3)
import fairssl.api, fairssl_plugins
from fairssl import registry
assert registry.methods.where()')
}

if [ -n "${WHEELS:-}" ]; then
  pip --no-index "$WHEELS"/*.whl || failed+=(wheels)
fi
state=0
ready 2>/dev/null || state=$?
if [ "$state" -ne 0 ] && [ "$state" -ne 3 ]; then
  pip --no-build-isolation -e . || pip -e .
  state=0
  ready || state=$?
fi
if [ "$state" -eq 3 ]; then
  echo "gpu_check: $python has no torch, or torch finds no GPU; nothing was measured" >&2
  exit 1
elif [ "$state" -ne 0 ]; then
  echo "gpu_check: fairssl cannot be imported, see above; put its wheel into \$WHEELS; nothing was measured" >&2
  exit 1
fi
: >"$out/tables.txt"
: >"$out/check.log"
command -v cc || echo "no C compiler: augmentation will not be compiled"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true

wanted() { # wanted NAME: was it asked for, by name or not at all
  [ "${#only[@]}" -eq 0 ] || [[ " ${only[*]} " == *" $1 "* ]]
}

perf() { # perf NAME SECONDS SCRIPT FLAGS...
  local name=$1 limit=$2 script=$3
  shift 3
  wanted "$name" || return 0
  step "$name" "$limit" "$python" "benchmarks/perf/$script.py" --json "$out/$name.json" "$@"
}

if wanted doctor; then
  step doctor 60 "$python" -m fairssl doctor --gpu
fi
perf step 100 step --seconds 0.2
perf packing 80 packing --repeats 3

utkface=
for found in "${FAIRSSL_DATA:-/nowhere}"/UTKFace "${FAIRSSL_DATA:-/nowhere}"/utkface*.zip; do
  if [ -e "$found" ]; then utkface=$found; fi
done
if wanted table && [ -n "$utkface" ]; then
  left=$((deadline - SECONDS - (deadline + 11) / 12)) # so that the board of what has ended has time too
  if [ "$left" -gt 380 ]; then left=380; fi
  step table "$left" "$python" -m fairssl bench --grid paper_utkface_fast --attr ethnicity --pack 4 --out "$out/runs"
  if compgen -G "$out/runs/results/*/record.json" >/dev/null; then # also where time ran out
    step board 60 "$python" -m fairssl board build "$out/runs" --grid paper_utkface_fast --out "$out/board"
  fi
elif wanted table; then
  perf table 380 stages --table --limit 365 --shape utkface
fi

if wanted tests && "$python" -c 'import pytest' 2>/dev/null; then
  limits=() # with the plugin what had no time is named; without it the run is ended by a signal
  if "$python" -c 'import pytest_timeout' 2>/dev/null; then limits=(--session-timeout=80); fi
  step tests 90 "$python" -m pytest -v --tb=short -W default "${limits[@]}" tests/gpu
elif wanted tests; then
  echo "tests: skipped, there is no pytest"
fi

cat "$out/tables.txt"
echo
echo "gpu_check: $SECONDS s; results in $out"
if [ "${#failed[@]}" -ne 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
