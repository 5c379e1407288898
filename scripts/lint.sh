#!/bin/sh
# Formatting and static analysis of our own sources. Usage: scripts/lint.sh BUILD_DIR, from the
# checkout, with the tools on the PATH; the folder needs a compile_commands.json.
set -u
build=$1
status=0
check() {
  echo "+ $1 ..."
  shift
  "$@" || status=1
}

folders=$(ls -d include src python examples tests benchmarks 2>/dev/null)
# shellcheck disable=SC2086 # lists of words
sources=$(find $folders -name '*.h' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' -o -name '*.inl')
# shellcheck disable=SC2086
check clang-format clang-format --dry-run -Werror $sources
check "ruff check" ruff check .
check "ruff format" ruff format --check .
check mypy mypy
check clang-tidy run-clang-tidy.py -quiet -hide-progress -p "$build" -warnings-as-errors='*' \
  "^$(pwd)/(src|python/csrc|examples)/.*\.cpp$"
exit $status
