"""The rows of the C++ benchmark program."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

from torchamp.bench.timing import Row


def bench_cpp(program: str, quick: bool) -> Iterator[Row]:
    """The rows of the C++ benchmark program, which measures the same operators without Python."""
    command = [program, "--benchmark_format=json"]
    if quick:
        command.append("--benchmark_filter=1000x1000|10000x64|autocast|scaler")
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    whats = {"unscale": "C++ unscale", "unscale_and_clip": "C++ unscale + clip"}
    for run in json.loads(result.stdout)["benchmarks"]:
        parts = run["name"].split("/")
        if parts[0] in whats:
            where = {"dtype": parts[1], "list": parts[2], "threads": int(parts[3].split(":")[1])}
            row: Row = {"what": whats[parts[0]], **where, "torchamp": run["torchamp_us"]}
            stock = [
                run[key] for key in run if key.startswith("stock") and not key.endswith("min_us")
            ]
            row |= {"limit": run["pass_us"], "spread": run["spread"], "of_limit": run["x_pass"]}
            row["torchamp_min"] = run["torchamp_min_us"]
            row["limit_min"] = run["pass_min_us"]
            if "mul__us" in run:
                row["mul_"] = run["mul__us"]
            if stock:
                row |= {"stock": min(stock), "of_stock": run["x_stock"]}
                row["stock_min"] = min(run[key] for key in run if key.startswith("stock"))
            yield row
        else:
            what = "C++ " + parts[0].replace("autocast_enter_exit", "autocast enter + exit")
            microseconds = run["cpu_time"] * {"ns": 1e-3, "us": 1.0}[run["time_unit"]]
            name = parts[1].split(":")[1] + " parameters" if len(parts) > 1 else ""
            yield {
                "what": what.replace("_", " "),
                "dtype": "float32" if name else "",
                "list": name,
                "threads": 1,
                "torchamp": microseconds,
            }
