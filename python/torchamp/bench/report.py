"""Rows as a table and a picture, beside targets if there are."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import torch

import torchamp
from torchamp.bench.timing import Row

Key = tuple[str, str, str, int]
Targets = dict[Key, tuple[str, float]]  # which number of a row, and its bound


def key(row: Row) -> Key:
    return row["what"], row["dtype"], row["list"], row["threads"]


def read_targets(path: Path) -> Targets:
    """From JSON: a list of rows' keys, each with "measure" and "bound". They are for the CPU."""
    return {key(row): (row["measure"], row["bound"]) for row in json.loads(path.read_text())}


def merge(runs: list[list[Row]]) -> list[Row]:
    """The median of every number over the runs."""
    merged = []
    for row in runs[0]:
        same = [other for run in runs for other in run if key(other) == key(row)]
        merged.append(
            {
                name: statistics.median(other[name] for other in same)
                if isinstance(value, float)
                else value
                for name, value in row.items()
            }
        )
    return merged


def _tensors(row: Row) -> int:
    return {"1000x1000": 1000, "10000x64": 10000, "resnet50": 161, "gpt2": 148}.get(row["list"], 1)


def _compared(row: Row, target: tuple[str, float]) -> tuple[str, bool, bool]:
    """The target in words, whether the medians meet it, and whether the shortest times do."""
    kind, bound = target
    shortest = row["torchamp_min"] if "torchamp_min" in row else row["torchamp"]
    if kind == "of_stock":
        best = row["stock_min"] / shortest
        return f"{bound:g}x stock", row["of_stock"] >= bound, best >= bound
    if kind == "of_limit":
        best = shortest / row["limit_min"]
        return f"{bound:.2f} of the limit", row["of_limit"] <= bound, best <= bound
    unit = 1e3 / _tensors(row) if kind == "ns_each" else 1.0
    words = f"{bound:g} ns a tensor" if kind == "ns_each" else f"{bound:g} us"
    return words, row["torchamp"] * unit <= bound, shortest * unit <= bound


def to_markdown(rows: list[Row], targets: Targets) -> str:
    def number(row: Row, name: str, form: str) -> str:
        return format(row[name], form) if name in row else ""

    def ratio(row: Row, name: str, over: str, under: str) -> str:
        if name not in row:
            return ""
        return f"{row[name]:.2f} ({row[over + '_min'] / row[under + '_min']:.2f})"

    head = ["what", "dtype", "list", "threads", "torchamp us", "ns/tensor", "stock us", "limit us"]
    head += ["spread", "faster than stock", "of the limit", *(["target", "met"] if targets else [])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        each = row["torchamp"] * 1e3 / _tensors(row)
        cells = [str(row[name]) for name in head[:4]]
        cells += [number(row, "torchamp", ".4g"), format(each, ".0f") if _tensors(row) > 1 else ""]
        cells += [number(row, "stock", ".4g"), number(row, "limit", ".4g")]
        cells += [number(row, "spread", ".2f"), ratio(row, "of_stock", "stock", "torchamp")]
        cells += [ratio(row, "of_limit", "torchamp", "limit")]
        if key(row) in targets:
            words, *met = _compared(row, targets[key(row)])
            cells += [words, " ".join(map(_yes, met))]
        elif targets:
            cells += ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _yes(met: bool) -> str:
    return "yes" if met else "**no**"


def draw(rows: list[Row], path: Path, title: str) -> bool:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    shown = [row for row in rows if "of_stock" in row and row["dtype"] in ("float32", "")]
    labels = [
        " ".join(str(part) for part in key(row) if part not in ("", "float32")) for row in shown
    ]
    labels = [f"{label} thread{'s' if label.endswith('2') else ''}" for label in labels]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.28 * len(shown)))
    axes.barh(labels, [row["of_stock"] for row in shown], color="#4477aa")
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("times faster than stock PyTorch (float32)")
    axes.set_title(title, fontsize=10)
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return True


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def machine(device: torch.device) -> dict[str, Any]:
    info: dict[str, Any] = {
        "device": device.type,
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "torchamp": torchamp.__version__,
    }
    with contextlib.suppress(OSError):
        info["load"] = os.getloadavg()[0]
    if device.type == "cuda":
        info["gpu"] = torch.cuda.get_device_name(device)
    return info
