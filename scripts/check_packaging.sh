#!/bin/bash
# Installs torchamp in every way that the README names, into throw-away places, and uses it from there.
# Usage: scripts/check_packaging.sh BUILD_DIR, with a finished build and its environment's programs on
# the PATH.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
environment=$(python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

say() { printf '\n== %s\n' "$*"; }
fail() {
  echo "check_packaging.sh: $*" >&2
  exit 1
}

# A copy, because building a package leaves files in the source folder.
source=$scratch/source
mkdir "$source"
cd "$checkout"
cp -r CMakeLists.txt LICENSE README.md pyproject.toml setup.py include python src "$source"
cd "$scratch"

cat >"$scratch/use.py" <<'EOF'
import pathlib
import sys

import torch
import torchamp
from importlib.metadata import version

folder = pathlib.Path(torchamp.__file__).parent
assert folder == pathlib.Path(sys.argv[1]).resolve(), f"imported from {folder}"
assert version("torchamp") == torchamp.__version__
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scaler = torchamp.GradScaler("cpu", init_scale=1024.0)
assert isinstance(scaler, torch.amp.GradScaler)
before = model.weight.detach().clone()
with torchamp.autocast("cpu", dtype=torch.float16):
    output = model(torch.ones(1, 4))
assert output.dtype == torch.float16
scaler.scale(output.float().sum()).backward()
scaler.step(optimizer)
scaler.update()
assert torch.equal(model.weight, before - 0.5), "the weights after a step"
print("used from", folder)
EOF

# An environment that sees the torch of the present one.
new_environment() {
  python -m venv --without-pip "$1"
  site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  echo "$environment" >"$site/torch_environment.pth"
}
pip_install() { "$1/bin/python" -m pip install --quiet --no-index --no-build-isolation "${@:2}"; }

# No CUDA toolkit to be seen: not on the PATH, not where CMake looks for it.
without_toolkit=(env -u CUDACXX -u CUDA_PATH -u CUDA_HOME PATH="$(
  IFS=:
  for folder in $PATH; do [ -x "$folder/nvcc" ] || printf '%s:' "$folder"; done
)")
no_toolkit_define=CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON

say "TORCHAMP_CUDA=ON without a toolkit is one clear error"
if "${without_toolkit[@]}" cmake -S "$source" -B "$scratch/on" -G Ninja -DTORCHAMP_CUDA=ON \
  -D$no_toolkit_define -DPython_EXECUTABLE="$(command -v python)" >"$scratch/on.log" 2>&1; then
  fail "configured with TORCHAMP_CUDA=ON, without nvcc"
fi
grep -A 2 'CMake Error' "$scratch/on.log"
grep -q 'TORCHAMP_CUDA is ON, but no CUDA compiler (nvcc) was found' "$scratch/on.log" ||
  fail "not the expected error"
[ "$(grep -c 'CMake Error' "$scratch/on.log")" = 1 ] || fail "more than one error"

say "pip install . without a toolkit"
new_environment "$scratch/wheel"
"${without_toolkit[@]}" "$scratch/wheel/bin/python" -m pip install --quiet --no-index --no-build-isolation \
  -C cmake.define.$no_toolkit_define "$source"
"$scratch/wheel/bin/python" use.py "$site/torchamp"
"$scratch/wheel/bin/python" -c 'from torchamp import _build; assert not _build.with_cuda'
"$scratch/wheel/bin/python" -m pip show --files torchamp | sed -n '/^Files:/,$p' | grep -v pycache |
  tee files.txt
[ "$(grep -c '\.so' files.txt)" = 2 ] || fail "expected two compiled files"
! grep -Eq '\.(h|cmake|cpp)$' files.txt || fail "headers, sources or CMake files in the package"
for file in torchamp/amp/__init__.py torchamp/cuda/amp/__init__.py torchamp/py.typed; do
  grep -q "$file" files.txt || fail "no $file in the package"
done

say "another torch than that of the build is one clear error"
mkdir elsewhere
cp -r "$site/torchamp" elsewhere
sed -i 's/^torch_version = .*/torch_version = "2.0.1"/' elsewhere/torchamp/_build.py
if PYTHONPATH=elsewhere "$scratch/wheel/bin/python" -c 'import torchamp' 2>elsewhere.log; then
  fail "imported with another torch"
fi
tail -n 1 elsewhere.log
tail -n 1 elsewhere.log | grep -q '^ImportError: torchamp was built for torch 2.0.1, but' ||
  fail "not the expected error"

say "pip install -e ."
new_environment "$scratch/editable"
pip_install "$scratch/editable" -e "$source"
"$scratch/editable/bin/python" use.py "$source/python/torchamp"

say "cmake --install and find_package"
cmake --install "$build" --prefix "$scratch/prefix" --component cpp >/dev/null
(cd "$scratch/prefix" && find . -type f -o -type l | sort)
! grep -rqF -e "$checkout" -e "$environment" "$scratch"/prefix/lib*/cmake || fail "absolute paths in the package"
consumer() { # consumer NAME CMAKE_ARGUMENTS...
  cmake -S "$checkout/tests/consumer" -B "$scratch/$1" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DPython_EXECUTABLE="$(command -v python)" "${@:2}" >"$1.log" || { cat "$1.log"; return 1; }
  cmake --build "$scratch/$1"
  "$scratch/$1/consumer"
}
consumer installed -DCMAKE_PREFIX_PATH="$scratch/prefix"

say "find_package with another torch than that of the build is one clear error"
cp -r "$scratch/prefix" "$scratch/other"
sed -i 's/2\.[0-9]*\.[0-9]/2.0.1/' \
  "$scratch"/other/lib*/cmake/torchamp/torchampConfig.cmake
if consumer other -DCMAKE_PREFIX_PATH="$scratch/other" 2>other.error; then
  fail "configured with another torch"
fi
grep -A 1 'it was built for torch 2.0.1, but' other.error || fail "not the expected error"

say "without torch find_package finds nothing, and a program may go on"
python -m venv --without-pip bare
mkdir optional
cat >optional/CMakeLists.txt <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(optional LANGUAGES CXX)
find_package(torchamp QUIET)
message(STATUS "torchamp_FOUND is ${torchamp_FOUND}")
find_package(torchamp REQUIRED)
EOF
if cmake -S optional -B optional/build -DPython_EXECUTABLE="$scratch/bare/bin/python" \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" >optional.log 2>&1; then
  fail "configured without torch"
fi
grep 'torchamp_FOUND is 0' optional.log || fail "not the expected result"
grep -A 2 'no LibTorch found' optional.log || fail "not the expected error"
if cmake -S optional -B optional/stale -DTorch_DIR="$scratch/bare" \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" >optional.log 2>&1; then
  fail "configured with a stale Torch_DIR"
fi
grep 'torchamp_FOUND is 0' optional.log || fail "not the expected result"

say "FetchContent"
consumer fetched -DTORCHAMP_SOURCE_DIR="$source" -DTORCHAMP_CUDA=OFF

say "all ways to install work"
