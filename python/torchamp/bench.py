"""``python -m torchamp bench``: torchamp beside stock PyTorch and beside the limit.

Contenders are called in turn, each call timed by itself: what else happens on the machine happens
to all of them. On the CPU with one thread, its processor time is what is taken; with more, and on
CUDA, the time that passed. The limit is `mul_` on one flat float32 buffer of as many bytes, and for
clipping a `dot` before it; in the rows of the C++ program it is its own plain loop. Times are
medians in microseconds; ratios are medians over the rounds, and in brackets of the shortest times.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import platform
import random
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import torchamp

Shape = tuple[int, ...]
Row = dict[str, Any]

# design targets: (what, dtype, list, threads) -> (ratio, bound). A row without an entry has none.
TARGETS: dict[tuple[str, str, str, int], tuple[str, float]] = {
    ("C++ unscale", "float32", "resnet50", 1): ("of_limit", 1.10),
    ("C++ unscale", "float32", "resnet50", 2): ("of_limit", 1.10),
    ("C++ unscale", "float32", "1000x1000", 1): ("of_stock", 5),
    ("C++ unscale", "float32", "1000x1000", 2): ("of_stock", 5),
    ("C++ unscale", "float32", "10000x64", 1): ("ns_each", 25),
    ("C++ unscale", "bfloat16", "1x100M", 1): ("of_limit", 1 / 0.85),
    ("C++ unscale", "float16", "1x100M", 1): ("of_limit", 1 / 0.85),
    ("C++ unscale", "bfloat16", "resnet50", 1): ("of_limit", 1 / 0.85),
    ("C++ unscale", "float16", "resnet50", 1): ("of_limit", 1 / 0.85),
    ("C++ unscale + clip", "float32", "1x100M", 1): ("of_stock", 1.4),
    ("C++ unscale + clip", "float32", "resnet50", 2): ("of_stock", 2.2),
    ("C++ unscale + clip", "float32", "1000x1000", 1): ("of_stock", 15),
    ("C++ unscale + clip", "float32", "10000x64", 1): ("of_stock", 50),
    ("C++ scaler iteration", "float32", "4 parameters", 1): ("us", 5),
    ("C++ autocast enter + exit", "", "", 1): ("us", 0.1),
    ("scaler.unscale_", "float32", "10000x64", 1): ("of_stock", 8),
    ("scaler iteration", "float32", "4 parameters", 1): ("of_stock", 8),
    ("scaler iteration", "float32", "161 parameters", 1): ("of_stock", 8),
    ("scaler iteration", "float32", "1000 parameters", 1): ("of_stock", 7),
    ("autocast enter + exit", "", "", 1): ("of_stock", 1),
}


def resnet50_shapes() -> list[Shape]:
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for planes, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            out = 4 * planes
            convolutions = [(planes, channels, 1, 1), (planes, planes, 3, 3), (out, planes, 1, 1)]
            if block == 0:
                convolutions.append((out, channels, 1, 1))
            for convolution in convolutions:
                shapes += [convolution, convolution[:1], convolution[:1]]
            channels = out
    return [*shapes, (1000, 2048), (1000,)]


def gpt2_shapes() -> list[Shape]:
    width = 768
    block: list[Shape] = [(width,), (width,), (width, 3 * width), (3 * width,)]
    block += [(width, width), (width,), (width,), (width,)]
    block += [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(50257, width), (1024, width), *(12 * block), (width,), (width,)]


def lists(quick: bool) -> dict[str, list[Shape]]:
    small: dict[str, list[Shape]] = {"1000x1000": [(1000,)] * 1000, "10000x64": [(64,)] * 10000}
    large: dict[str, list[Shape]] = {
        "1x100M": [(100_000_000,)],
        "resnet50": resnet50_shapes(),
        "gpt2": gpt2_shapes(),
    }
    return small if quick else large | small


# --- timing --------------------------------------------------------------------------------------


Timer = Callable[[Callable[[], Any]], float]


def _clock(clock: Callable[[], int], device: torch.device) -> Timer:
    def timer(call: Callable[[], Any]) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = clock()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (clock() - start) / 1e3

    return timer


def _host_timer(device: torch.device, threads: int) -> Timer:
    """Microseconds until the host has everything done, with what it waits for."""
    alone = device.type == "cpu" and threads == 1
    return _clock(time.thread_time_ns if alone else time.perf_counter_ns, device)


def _timer(device: torch.device, threads: int) -> Timer:
    """Microseconds on the device."""
    if device.type != "cuda":
        return _host_timer(device, threads)

    def timer(call: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    return timer


def compare(contenders: dict[str, Callable[[], Any]], rounds: int, timer: Timer) -> Row:
    """Call each contender once a round; `torchamp` among them, `stock` and `limit` if there are."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    generator = random.Random(1)
    for _ in range(2):
        for call in contenders.values():
            call()
    for _ in range(rounds):
        generator.shuffle(names)  # nobody always follows the same one
        for name in names:
            times[name].append(timer(contenders[name]))
    row: Row = {name: statistics.median(taken) for name, taken in times.items()}
    row |= {f"{name}_min": min(taken) for name, taken in times.items()}
    ours = times["torchamp"]
    deciles = statistics.quantiles(ours, n=10)
    row["spread"] = (deciles[-1] - deciles[0]) / row["torchamp"]
    for name, ratio in (("stock", "of_stock"), ("limit", "of_limit")):
        if name in times:
            pairs = zip(times[name], ours, strict=True)
            row[ratio] = statistics.median(
                other / own if name == "stock" else own / other for other, own in pairs
            )
    return row


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- what is measured ----------------------------------------------------------------------------


class Idle(torch.optim.Optimizer):
    """An optimizer whose step does nothing: what remains is the scaler's own time."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> Any:
        return None


class _Job:
    """A list of gradients, and a flat buffer of as many bytes.

    Calls double and halve either in turn, so that values stay what they are. Large gradients are
    views of the buffer, as in DDP: where memory lies matters by a tenth and more, and the limit
    must not be another memory's. Small ones, whose own cost counts, are allocated one by one.
    """

    def __init__(self, shapes: list[Shape], dtype: torch.dtype, device: torch.device) -> None:
        aligned = [-(-math.prod(shape) * dtype.itemsize // 64) * 64 for shape in shapes]
        self.flat = torch.ones(sum(aligned) // 4, device=device)
        if self.flat.nbytes / len(shapes) > 2**16:
            parts = self.flat.view(dtype).split([size // dtype.itemsize for size in aligned])
            self.grads = [
                part[: math.prod(shape)].view(shape)
                for part, shape in zip(parts, shapes, strict=True)
            ]
        else:
            self.grads = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        self.params = [torch.nn.Parameter(grad) for grad in self.grads]
        for param, grad in zip(self.params, self.grads, strict=True):
            param.grad = grad.fill_(1.5)
        self.found_inf = torch.zeros((), device=device)
        half, two = (torch.tensor(factor, device=device) for factor in (0.5, 2.0))
        self.scales = itertools.cycle([(half, two), (two, half)])  # and their inverses
        self.factors = itertools.cycle([2.0, 0.5])

    def unscale(self) -> None:
        torch.ops.torchamp.unscale_(self.grads, self.found_inf, next(self.scales)[0])

    def unscale_stock(self) -> None:
        torch._amp_foreach_non_finite_check_and_unscale_(
            self.grads, self.found_inf, next(self.scales)[1]
        )

    def clip(self) -> None:
        torch.ops.torchamp.clip_grad_norm_(self.grads, self.found_inf, next(self.scales)[0], 1e9)

    def clip_stock(self) -> None:
        self.unscale_stock()
        torch.nn.utils.clip_grad_norm_(self.params, 1e9)

    def pass_scale(self) -> None:
        self.flat.mul_(next(self.factors))

    def pass_clip(self) -> None:
        torch.dot(self.flat, self.flat)
        self.pass_scale()


def _rounds(shapes: list[Shape]) -> int:
    elements = sum(math.prod(shape) for shape in shapes)
    return 7 if elements > 5e7 else 15 if elements > 5e6 else 101


def bench_operators(device: torch.device, threads: list[int], quick: bool) -> Iterator[Row]:
    for name, shapes in lists(quick).items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            for count in threads:
                job = _Job(shapes, dtype, device)
                where = {"dtype": str(dtype).split(".")[-1], "list": name, "threads": count}
                contenders = {"torchamp": job.unscale, "limit": job.pass_scale}
                if device.type == "cpu" or dtype is not torch.bfloat16:  # stock's CUDA has none
                    contenders["stock"] = job.unscale_stock
                with torch.no_grad(), _threads(count):
                    row = compare(contenders, _rounds(shapes), _timer(device, count))
                    yield {"what": "unscale", **where, **row}
                    if dtype is torch.float32:
                        row = compare(
                            {"torchamp": job.clip, "stock": job.clip_stock, "limit": job.pass_clip},
                            _rounds(shapes),
                            _timer(device, count),
                        )
                        yield {"what": "unscale + clip", **where, **row}
                if job.found_inf.item() != 0:
                    raise RuntimeError("an overflow where there is none")


def _scaler_calls(
    kind: type[torch.amp.GradScaler], optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Calls that unscale only, and that run a whole iteration."""
    scaler = kind(device.type, init_scale=1.0, growth_interval=2**30)
    loss = torch.ones((), device=device, requires_grad=True)

    def unscale() -> None:
        scaler._per_optimizer_states.clear()
        scaler.unscale_(optimizer)

    def iteration() -> None:
        scaler.scale(loss)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    iteration()
    return unscale, iteration


def bench_scaler(device: torch.device) -> Iterator[Row]:
    def optimizer_of(count: int, numel: int) -> torch.optim.Optimizer:
        params = [torch.nn.Parameter(torch.ones(numel, device=device)) for _ in range(count)]
        for param in params:
            param.grad = torch.ones_like(param)
        return Idle(params)

    kinds = {"torchamp": torchamp.GradScaler, "stock": torch.amp.GradScaler}
    with _threads(1):
        for count in (4, 161, 1000):
            optimizer = optimizer_of(count, 16)
            calls = {
                name: _scaler_calls(kind, optimizer, device)[1] for name, kind in kinds.items()
            }
            row = compare(calls, 401 if count < 1000 else 101, _host_timer(device, 1))
            where = {"dtype": "float32", "list": f"{count} parameters", "threads": 1}
            yield {"what": "scaler iteration", **where, **row}
        optimizer = optimizer_of(10000, 64)
        calls = {name: _scaler_calls(kind, optimizer, device)[0] for name, kind in kinds.items()}
        row = compare(calls, 41, _host_timer(device, 1))
        where = {"dtype": "float32", "list": "10000x64", "threads": 1}
        yield {"what": "scaler.unscale_", **where, **row}


def bench_autocast(device: torch.device) -> Iterator[Row]:
    def many(kind: type[torch.amp.autocast]) -> Callable[[], None]:
        def call() -> None:
            for _ in range(100):
                with kind(device.type):
                    pass

        return call

    row = compare(
        {"torchamp": many(torchamp.autocast), "stock": many(torch.amp.autocast)},
        101,
        _host_timer(device, 1),
    )
    for name in ("torchamp", "stock", "torchamp_min", "stock_min"):
        row[name] /= 100
    yield {"what": "autocast enter + exit", "dtype": "", "list": "", "threads": 1, **row}


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


# --- results -------------------------------------------------------------------------------------


def _key(row: Row) -> tuple[str, str, str, int]:
    return row["what"], row["dtype"], row["list"], row["threads"]


def merge(runs: list[list[Row]]) -> list[Row]:
    """The median of every number over the runs."""
    merged = []
    for row in runs[0]:
        same = [other for run in runs for other in run if _key(other) == _key(row)]
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


def target_of(row: Row) -> tuple[str, bool, bool] | None:
    """The target in words, whether the medians meet it, and whether the shortest times do."""
    if _key(row) not in TARGETS or row.get("device", "cpu") != "cpu":
        return None
    kind, bound = TARGETS[_key(row)]
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


def to_markdown(rows: list[Row]) -> str:
    def number(row: Row, name: str, form: str) -> str:
        return format(row[name], form) if name in row else ""

    def ratio(row: Row, name: str, over: str, under: str) -> str:
        if name not in row:
            return ""
        return f"{row[name]:.2f} ({row[over + '_min'] / row[under + '_min']:.2f})"

    head = ["what", "dtype", "list", "threads", "torchamp us", "ns/tensor", "stock us", "limit us"]
    head += ["spread", "faster than stock", "of the limit", "target", "met"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        target = target_of(row)
        each = row["torchamp"] * 1e3 / _tensors(row)
        cells = [str(row[name]) for name in head[:4]]
        cells += [number(row, "torchamp", ".4g"), format(each, ".0f") if _tensors(row) > 1 else ""]
        cells += [number(row, "stock", ".4g"), number(row, "limit", ".4g")]
        cells += [number(row, "spread", ".2f"), ratio(row, "of_stock", "stock", "torchamp")]
        cells += [ratio(row, "of_limit", "torchamp", "limit")]
        cells += [target[0], " ".join(_yes(met) for met in target[1:])] if target else ["", ""]
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
        " ".join(str(part) for part in _key(row) if part not in ("", "float32")) for row in shown
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
        shown = " ".join(str(part) for part in _key(row))
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
    args = parser.parse_args(argv)
    devices = [args.device] if args.device else ["cpu"] + ["cuda"] * torch.cuda.is_available()
    warnings.filterwarnings("ignore", module="torch")
    for name in devices:
        device = torch.device(name)
        runs = [run(device, args) for _ in range(args.runs)]
        rows = merge(runs)
        info = machine(device)
        table = to_markdown(rows)
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
