#!/usr/bin/env bash
# Instructions per tensor (10000 x 64) and per element (1 x 1M) of torchamp and stock, counted by
# callgrind: the difference between two runs with different numbers of calls, so without start-up.
# Valgrind has no AVX-512; both sides run their AVX2 code.
#
#   benchmarks/callgrind.sh build/torchamp_bench_calls
set -euo pipefail
program=$1
few=3
many=13

instructions() { # contender tensors numel calls
  OMP_NUM_THREADS=1 valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$@" 2>&1 |
    awk '/Collected/ { print $NF }'
}

printf '| contender | list | instructions per tensor | instructions per element |\n|---|---|---|---|\n'
for contender in torchamp stock torchamp_clip stock_clip; do
  for list in '10000 64' '1 1000000'; do
    read -r tensors numel <<<"$list"
    first=$(instructions "$contender" "$tensors" "$numel" $few)
    last=$(instructions "$contender" "$tensors" "$numel" $many)
    awk -v contender="$contender" -v tensors="$tensors" -v numel="$numel" \
      -v calls=$((many - few)) -v total=$((last - first)) 'BEGIN {
        printf "| %s | %d x %d | %.1f | %.3f |\n", contender, tensors, numel,
          total / calls / tensors, total / calls / tensors / numel }'
  done
done
