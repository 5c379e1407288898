#!/bin/bash
# Builds on a machine with a GPU and checks there what no other machine can: the tests on CUDA,
# compute-sanitizer, CUDA graphs, kernel counts, streams, the benchmark. Eight minutes at most; goes on
# after a failure; needs no network. Without a GPU it rehearses: all that a CPU can run does run.
#
#   scripts/gpu_check.sh [--rehearse] [--only STEP,STEP...] [OUT_FOLDER]
#
# OUT_FOLDER gets at most 8 files, summary.md first of all. Default: $OUT, else benchmarks/results/cuda
# (out/gpu_check in a rehearsal). The exit status is 1 if a step failed.
#
# Needed: a CUDA build of torch, nvcc of its major version, a C++20 compiler, cmake, ninja, pytest, numpy.
# Used if there: Catch2 (C++ tests), compute-sanitizer, pytest-xdist (runs the long test suite faster),
# matplotlib (a picture of the benchmark). summary.md says what was missing.
#
# Catch2 can be brought along where it cannot be installed, as a folder with its headers and its CMake
# package; where Debian's package catch2 is installed:
#
#   mkdir -p .catch2/include .catch2/lib/cmake
#   cp -r /usr/include/catch2 .catch2/include/ && cp -r /usr/lib/cmake/Catch2 .catch2/lib/cmake/
#   rm .catch2/lib/cmake/Catch2/Catch2Targets-*.cmake   # of version 2: names a library that no one needs
#
# and take .catch2 along with the checkout (keep git from seeing it: echo /.catch2/ >>.git/info/exclude).
#
# Variables:
#   PYTHON=python3           the interpreter that has torch
#   BUILD=build/gpu_check    build folder; one that is configured already is used as it is
#   CATCH2=.catch2           that folder
#   TIME_LIMIT=480           seconds for everything; in a rehearsal, which may take six times as long, 2880
set -uo pipefail
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
cd "$(dirname "$self")/.." || exit 2

PYTHON=${PYTHON:-python3}
BUILD=${BUILD:-build/gpu_check}
CATCH2=${CATCH2:-$PWD/.catch2}
PYTHON=$(command -v "$PYTHON") || {
  echo "gpu_check.sh: no Python; choose one with PYTHON=/path/to/python3" >&2
  exit 2
}
case $PYTHON in /*) ;; *) PYTHON=$PWD/$PYTHON ;; esac
mkdir -p "$BUILD" && BUILD=$(cd "$BUILD" && pwd) || exit 2
SITE=$BUILD/site
# An environment's programs (cmake, ninja) may lie beside its interpreter only; nvcc is often on no path.
PATH=$(dirname "$PYTHON"):$PATH:/usr/local/cuda/bin
export PYTHON BUILD CATCH2 SITE PATH
export PYTHONPATH=$SITE${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 TORCHAMP_BUILD_DIR=$BUILD

# --- the steps -------------------------------------------------------------------------------------
# Each is a function; a line "detail: ..." goes into the summary. Status 77: it could not be run here.

cannot() { # cannot REASON
  echo "detail: $*"
  exit 77
}

missing() { # missing NAME WHAT_IS_LEFT_OUT
  echo "missing: $1, so left out: $2"
}

has_module() { "$PYTHON" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }

step_machine() {
  date -u +'%Y-%m-%d %H:%M UTC'
  echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown)"
  git status --short 2>/dev/null | head -n 20
  uname -a
  grep -m 1 'model name' /proc/cpuinfo
  echo "$(nproc) cores, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
  nvidia-smi
  nvidia-smi --query-gpu=name,compute_cap,memory.total,driver_version,clocks.sm,clocks.mem --format=csv
  nvcc --version
  compute-sanitizer --version
  "${CXX:-c++}" --version
  cmake --version
  ninja --version
  "$PYTHON" --version
  # With a GPU that torch does not see, every test on CUDA would be skipped in silence.
  "$PYTHON" - <<'END' || return 1
import os

import torch

print("torch", torch.__version__, "CUDA", torch.version.cuda)
for index in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(index))
if os.environ["gpu"] == "1" and not torch.cuda.is_available():
    raise SystemExit("detail: torch does not see the GPU")
END
  local module
  for module in torch pytest numpy; do
    has_module $module || missing $module "everything in Python that needs it"
  done
  has_module xdist || missing pytest-xdist "nothing, but the whole suite runs on one core"
  has_module matplotlib || missing matplotlib "the benchmark's picture"
  command -v compute-sanitizer >/dev/null || missing compute-sanitizer "steps sanitizer and memcheck"
  echo "detail: $(nvidia-smi -L 2>/dev/null | head -n 1 | cut -d '(' -f 1 | grep . || echo 'no GPU')," \
    "torch $("$PYTHON" -c 'import torch; print(torch.__version__)')"
}

step_build() {
  local architecture targets=(src/all python/all)
  if [ ! -e "$BUILD/CMakeCache.txt" ]; then
    local options=(-DPython_EXECUTABLE="$PYTHON" -DTORCHAMP_PYTHON=ON -DTORCHAMP_TESTS=ON
      -DTORCHAMP_EXAMPLES=ON -DTORCHAMP_KERNEL_TESTS=OFF)
    [ -d "$CATCH2" ] && options+=(-DCatch2_DIR="$(dirname "$(find "$CATCH2" -name Catch2Config.cmake)")")
    if command -v nvcc >/dev/null; then
      # The GPU's own architecture only. -lineinfo: compute-sanitizer then names source lines.
      architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
        head -n 1 | tr -cd 0-9)
      options+=(-DTORCHAMP_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${architecture:-90}-real"
        -DCMAKE_CUDA_FLAGS=-lineinfo)
    fi
    cmake -S . -B "$BUILD" -G Ninja "${options[@]}" || {
      rm -f "$BUILD/CMakeCache.txt" # not to be taken for a configured folder
      return 1
    }
  fi
  grep -q '^TORCHAMP_TESTS:BOOL=ON' "$BUILD/CMakeCache.txt" && targets+=(tests/bindings/all)
  grep -q '^TORCHAMP_EXAMPLES:BOOL=ON' "$BUILD/CMakeCache.txt" && targets+=(examples/all)
  case $(grep '^Catch2_DIR:' "$BUILD/CMakeCache.txt") in
  *NOTFOUND) missing Catch2 "the C++ tests" ;;
  ?*) targets+=(tests/cpp/all) ;;
  esac
  cmake --build "$BUILD" --target "${targets[@]}" &&
    cmake --install "$BUILD" --prefix "$SITE" --component python &&
    cmake --install "$BUILD" --prefix "$SITE" --component python_sources || return 1
  local kernels
  kernels=$("$PYTHON" -c 'import torch, torchamp; print(*torchamp._C.native_kernels())')
  echo "detail: kernels for $kernels"
  [[ $rehearsal = 1 || $kernels = *CUDA* ]]
}

step_cpp() {
  local tests=$BUILD/tests/cpp/torchamp_tests status
  [ -x "$tests" ] || cannot "not built (no Catch2)"
  "$tests" 2>&1 | tee "$BUILD/step.log"
  status=$?
  echo "detail: $(grep -aE '^(All tests passed|test cases:)' "$BUILD/step.log" | tail -n 1)"
  return $status
}

python_tests() { # python_tests PYTEST_ARGUMENT...
  has_module pytest || {
    echo "detail: no pytest"
    return 1
  }
  local status
  "$PYTHON" -m pytest -p no:cacheprovider -q -rs --tb=short --durations=3 "$@" 2>&1 |
    tee "$BUILD/step.log"
  status=$?
  echo "detail: $(tail -n 1 "$BUILD/step.log" | tr -d '=')"
  return $status
}

step_parity() { python_tests tests/python/test_cuda_parity.py; }
step_graphs() { python_tests tests/python/test_cuda_graphs.py; }
step_launches() { python_tests -s tests/python/test_cuda_launches.py; }
step_streams() { python_tests tests/python/test_cuda_streams.py; }
step_scaler() { python_tests tests/python/test_cuda_scaler.py; }
step_lists() { python_tests -s tests/python/test_cuda_lists.py; }

# The kernels in a small program without torch, whose tensors are allocations of their own, under all
# four tools at once.
step_sanitizer() {
  local cuda program=$BUILD/kernels_on_device objects
  mapfile -t objects < <(find "$BUILD/src" -name '*.cu.o')
  [ ${#objects[@]} -gt 0 ] || cannot "built without CUDA kernels"
  cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  "${CXX:-c++}" -std=c++20 -O1 -g -I "$cuda/include" -I src -I tests/kernels \
    tests/cpp/kernels_on_device.cpp tests/kernels/gradients.cpp src/ops/common/chunk_table.cpp \
    "${objects[@]}" -L "$cuda/lib64" -Wl,-rpath,"$cuda/lib64" -lcudart -o "$program" || return 1
  local status=0
  "$program" || status=$?
  [ $status != 77 ] || cannot "no GPU; the program is built and says so"
  [ $status = 0 ] || return 1
  command -v compute-sanitizer >/dev/null || cannot "the program passes by itself; no compute-sanitizer"
  local tool tools=(memcheck racecheck initcheck synccheck) passed=() failed=()
  declare -A pids
  for tool in "${tools[@]}"; do
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" >"$BUILD/$tool.log" 2>&1 &
    pids[$tool]=$!
  done
  for tool in "${tools[@]}"; do
    if wait "${pids[$tool]}"; then passed+=("$tool"); else failed+=("$tool"); fi
    echo "--- $tool"
    cat "$BUILD/$tool.log"
    ! grep -q 'Device not supported' "$BUILD/$tool.log" || cannot "compute-sanitizer refuses this device"
  done
  echo "detail: passed ${passed[*]:-none}; failed ${failed[*]:-none}"
  [ ${#failed[@]} = 0 ]
}

# The way from torch to the kernels, without torch's caching allocator, which would hide a short buffer.
step_memcheck() {
  [ "$gpu" = 1 ] || cannot "no GPU"
  command -v compute-sanitizer >/dev/null || cannot "no compute-sanitizer"
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 \
    --target-processes application-only "$PYTHON" -m pytest -p no:cacheprovider -q \
    tests/python/test_cuda_parity.py -k '0-cuda or cuda and (k37 or k5 or k8 or same_bits)' ||
    return 1
  echo "detail: no errors"
}

step_bench() {
  local device=cuda arguments=()
  if [ "$gpu" != 1 ]; then
    device=cpu arguments=(--quick --threads 1)
  fi
  "$PYTHON" -m torchamp bench --device $device "${arguments[@]}" --output "$out" || return 1
  echo "detail: $device.md, $device.json"
}

step_examples() {
  local device=cuda program
  [ "$gpu" = 1 ] || device=cpu
  for program in "$BUILD/examples/mlp" "$PYTHON examples/mlp/mlp.py"; do
    # shellcheck disable=SC2086 # the second is two words
    $program --device $device || return 1
  done
  echo "detail: mlp in C++ and Python on $device"
}

# All other tests, most of which use the CPU: on a machine with CUDA they may find what is different.
step_python() {
  local options=()
  has_module xdist && options=(-n "$(($(nproc) > 8 ? 8 : $(nproc)))")
  python_tests "${options[@]}" tests/python --ignore-glob='*test_cuda_*'
}

# --- running them ----------------------------------------------------------------------------------

steps=( # NAME SECONDS LOG
  "machine 40 machine.txt"
  "build 200 build.log"
  "parity 60 tests.log"
  "cpp 60 tests.log"
  "scaler 60 tests.log"
  "graphs 60 tests.log"
  "launches 60 tests.log"
  "streams 45 tests.log"
  "lists 60 tests.log"
  "sanitizer 90 sanitizer.log"
  "examples 40 tests.log"
  "bench 120 tests.log"
  "memcheck 90 sanitizer.log"
  "python 210 tests.log"
)

if [ "${1:-}" = --step ]; then # this script's own, for one step under a time limit
  "step_$2"
  exit
fi

rehearsal=0
only=
while [ $# -gt 0 ]; do
  case $1 in
  --rehearse) rehearsal=1 ;;
  --only)
    only=,$2,
    shift
    ;;
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$self"
    exit
    ;;
  -*)
    echo "gpu_check.sh: unknown option $1" >&2
    exit 2
    ;;
  *) out=$1 ;;
  esac
  shift
done
gpu=0
if [ $rehearsal = 0 ]; then
  if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    gpu=1
  else
    echo "gpu_check.sh: WARNING: no GPU here, this is a rehearsal" >&2
    rehearsal=1
  fi
fi
[ $rehearsal = 0 ] || default=out/gpu_check
out=${out:-${OUT:-${default:-benchmarks/results/cuda}}}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
[ -n "$only" ] || rm -f "$out"/{summary.md,machine.txt,build.log,tests.log,sanitizer.log}
export rehearsal gpu out
slowness=1 # the limits are for the 16 cores that come with a GPU
[ $rehearsal = 0 ] || {
  slowness=6
  export CUDA_VISIBLE_DEVICES=
}
TIME_LIMIT=${TIME_LIMIT:-$((480 * slowness))}

table=()
failures=0
for entry in "${steps[@]}"; do
  read -r name limit log <<<"$entry"
  [[ -z $only || $only = *,$name,* ]] || continue
  left=$((TIME_LIMIT - SECONDS))
  if [ $left -lt 10 ]; then
    table+=("| $name | no time left | | |")
    ((failures += 1))
    continue
  fi
  limit=$((limit * slowness < left ? limit * slowness : left))
  start=$SECONDS
  printf '\n##### %s\n' "$name" >>"$out/$log"
  from=$(($(wc -c <"$out/$log") + 1))
  timeout --kill-after=5 "$limit" bash "$self" --step "$name" >>"$out/$log" 2>&1 </dev/null
  status=$?
  case $status in
  0) state=ok ;;
  77) state=skipped ;;
  124 | 137) state="TIMED OUT" ;;
  *) state=FAILED ;;
  esac
  detail=$(tail -c "+$from" "$out/$log" | grep -a '^detail: ' | tail -n 1 | cut -c 9-)
  [[ $state != skipped || $detail != "no GPU"* ]] || state="no GPU"
  table+=("| $name | $state | $((SECONDS - start)) | ${detail//|//} |")
  echo "${table[-1]}"
  if [[ $state = FAILED || $state = "TIMED OUT" ]]; then
    ((failures += 1))
    tail -c "+$from" "$out/$log" | tail -n 15 | sed 's/^/    /'
  fi
done

{
  [ $rehearsal = 0 ] || printf 'A rehearsal without a GPU: nothing here was run on one.\n\n'
  printf '| step | state | seconds | detail |\n|---|---|---|---|\n'
  printf '%s\n' "${table[@]}"
  echo
  grep -ha '^missing: ' "$out/machine.txt" "$out/build.log" 2>/dev/null || true
} >"$out/summary.md"
for file in "$out"/*; do # what a slow line takes away
  if [ -f "$file" ] && [ "$(wc -c <"$file")" -gt 15000000 ]; then
    tail -c 15000000 "$file" >"$file.tail" && mv "$file.tail" "$file"
  fi
done
echo
cat "$out/summary.md"
[ $failures = 0 ]
