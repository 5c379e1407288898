#!/bin/sh
# What the build needs and pip cannot bring: installed by apt where we are root, else named.
# Usage: scripts/system_packages.sh PYTHON [benchmark]
set -eu
python=$1
wanted=${2:-}

if ! version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); then
  echo "torchamp: '$python' does not run; choose a Python with: make PYTHON=/path/to/python3" >&2
  exit 1
fi

packages=
names=
need() { # need PACKAGE DESCRIPTION
  packages="$packages $1"
  names="$names${names:+, }$2"
}

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  need "python$version-venv" "Python's venv module"
[ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
  need "python$version-dev" "Python's C headers"
if ! command -v "${CXX:-c++}" >/dev/null; then
  need g++ "a C++ compiler"
  need catch2 "Catch2"
elif [ -z "${Catch2_DIR:-}${CMAKE_PREFIX_PATH:-}" ]; then # which may have Catch2: CMake will tell
  printf '%s\n' '#if !__has_include(<catch2/catch.hpp>) && !__has_include(<catch2/catch_all.hpp>)' \
    '#error' '#endif' | "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1 || need catch2 "Catch2"
fi
if [ "$wanted" = benchmark ]; then
  printf '#include <benchmark/benchmark.h>\n' | "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1 ||
    need libbenchmark-dev "Google Benchmark"
fi

[ -n "$packages" ] || exit 0
if ! command -v apt-get >/dev/null; then
  echo "torchamp: please install what is missing: $names" >&2
  exit 1
elif [ "$(id -u)" != 0 ]; then
  echo "torchamp: missing: $names; install them with: sudo apt-get install$packages" >&2
  exit 1
fi
echo "torchamp: installing$packages"
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages
