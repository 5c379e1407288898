"""``python -m torchamp bench``: torchamp beside stock PyTorch and beside the limit.

Contenders are called in turn, each call timed by itself: what else happens on the machine happens
to all of them. On the CPU with one thread, its processor time is what is taken; with more, and on
CUDA, the time that passed. The limit is `mul_` on one flat float32 buffer of as many bytes, and for
clipping a `dot` before it; in the rows of the C++ program it is its own plain loop. Times are
medians in microseconds; ratios are medians over the rounds, and in brackets of the shortest times.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from torchamp.bench.cpp import bench_cpp
from torchamp.bench.operators import bench_operators
from torchamp.bench.report import draw, key, machine, merge, read_targets, to_markdown
from torchamp.bench.scaler import bench_autocast, bench_scaler
from torchamp.bench.timing import Row


def run(device: torch.device, args: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    threads = args.threads if device.type == "cpu" else [torch.get_num_threads()]

    def sources() -> Iterator[Row]:
        if args.cpp and device.type == "cpu":
            yield from bench_cpp(args.cpp, args.quick)
        yield from bench_operators(device, threads, args.quick)
        yield from bench_scaler(device)
        yield from bench_autocast(device)

    for row in sources():
        rows.append({**row, "device": device.type})
        shown = " ".join(str(part) for part in key(row))
        ratios = [f"{row[k]:.2f} {k}" for k in ("of_stock", "of_limit") if k in row]
        print(f"{device.type} {shown}: {row['torchamp']:.4g} us", *ratios, flush=True)
    return rows


def main(argv: list[str]) -> int:
    """Run the benchmarks; the arguments are those of ``python -m torchamp bench``."""
    parser = argparse.ArgumentParser(prog="python -m torchamp bench", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: both if there is CUDA")
    parser.add_argument("--threads", default=[1, 2], type=lambda s: [int(x) for x in s.split(",")])
    parser.add_argument("--runs", default=1, type=int, help="runs to take the median of")
    parser.add_argument("--quick", action="store_true", help="short lists only")
    parser.add_argument("--cpp", metavar="PROGRAM", help="also run the program torchamp_benchmarks")
    parser.add_argument("--output", type=Path, help="folder for the table, JSON and PNG")
    parser.add_argument("--targets", type=Path, help="JSON: bounds to compare the CPU's rows with")
    args = parser.parse_args(argv)
    targets = read_targets(args.targets) if args.targets else {}
    devices = [args.device] if args.device else ["cpu"] + ["cuda"] * torch.cuda.is_available()
    warnings.filterwarnings("ignore", module="torch")
    for name in devices:
        device = torch.device(name)
        runs = [run(device, args) for _ in range(args.runs)]
        rows = merge(runs)
        info = machine(device)
        table = to_markdown(rows, targets if name == "cpu" else {})
        print("\n" + json.dumps(info) + "\n\n" + table)
        if args.output:
            args.output.mkdir(parents=True, exist_ok=True)
            document = {"machine": info, "runs": args.runs, "rows": rows}
            (args.output / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
            (args.output / f"{name}.md").write_text(table)
            title = f"{info.get('gpu', info['cpu'])}, torch {info['torch']}"
            if not draw(rows, args.output / f"{name}.png", title):
                print("no picture: matplotlib is not installed")
    return 0
