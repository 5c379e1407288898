#!/usr/bin/env bash
# Instructions per tensor (10000 x 64) and per element (1 x 1M) of torchamp and stock, counted by
# callgrind inside the calls only. Valgrind has no AVX-512; both sides run their AVX2 code.
#
#   benchmarks/callgrind.sh build/2.15.0/benchmarks/torchamp_bench_calls
set -euo pipefail
program=$1
calls=5

instructions() { # contender tensors numel
  OMP_NUM_THREADS=1 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
    --toggle-collect='*run_calls*' "$program" "$@" "$calls" 2>&1 |
    awk '/Collected/ { print $NF }'
}

printf '| contender | list | instructions per tensor | instructions per element |\n|---|---|---|---|\n'
for contender in torchamp stock torchamp_clip stock_clip; do
  for list in '10000 64' '1 1000000'; do
    read -r tensors numel <<<"$list"
    awk -v contender="$contender" -v tensors="$tensors" -v numel="$numel" -v calls=$calls \
      -v total="$(instructions "$contender" "$tensors" "$numel")" 'BEGIN {
        printf "| %s | %d x %d | %.1f | %.3f |\n", contender, tensors, numel,
          total / calls / tensors, total / calls / tensors / numel }'
  done
done
