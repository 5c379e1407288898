"""The operators on lists of gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from torchamp.bench.timing import Row, compare, device_timer, threads

Shape = tuple[int, ...]


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


def bench_operators(device: torch.device, thread_counts: list[int], quick: bool) -> Iterator[Row]:
    for name, shapes in lists(quick).items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            for count in thread_counts:
                job = _Job(shapes, dtype, device)
                where = {"dtype": str(dtype).split(".")[-1], "list": name, "threads": count}
                contenders = {"torchamp": job.unscale, "limit": job.pass_scale}
                if device.type == "cpu" or dtype is not torch.bfloat16:  # stock's CUDA has none
                    contenders["stock"] = job.unscale_stock
                with torch.no_grad(), threads(count):
                    row = compare(contenders, _rounds(shapes), device_timer(device, count))
                    yield {"what": "unscale", **where, **row}
                    if dtype is torch.float32:
                        row = compare(
                            {"torchamp": job.clip, "stock": job.clip_stock, "limit": job.pass_clip},
                            _rounds(shapes),
                            device_timer(device, count),
                        )
                        yield {"what": "unscale + clip", **where, **row}
                if job.found_inf.item() != 0:
                    raise RuntimeError("an overflow where there is none")
