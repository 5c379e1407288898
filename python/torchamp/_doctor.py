"""``python -m torchamp doctor``: what is installed and what low precision does here."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator

import torch

import torchamp
from torchamp import _C, _build

_SIZE = 512  # of the matrices that are multiplied
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def report() -> str:
    """What there is to know about versions, kernels and devices, as lines of text.

    Runs a few small operators on each device, and synchronises with it.
    """
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    yield f"torchamp {torchamp.__version__}, built for torch {_build.torch_version}"
    yield f"torch    {torch.__version__}, CUDA {torch.version.cuda or 'not in this build'}"
    yield f"Python   {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield ""
    kernels = _C.native_kernels()
    yield f"kernels compiled in: {', '.join(kernels)}; for the CPU, {_C.cpu_instruction_set()} here"
    if "CUDA" not in kernels:
        yield "  CUDA tensors go through PyTorch's operators: right, but slower."
    yield ""
    yield from _device("cpu", f"CPU, {_cpu_instructions()}, {torch.get_num_threads()} threads")
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        name = f"{torch.cuda.get_device_name(index)}, capability {major}.{minor}"
        yield from _device(f"cuda:{index}", name)
    if not torch.cuda.is_available():
        yield "cuda: not available. autocast and GradScaler for it warn and do nothing."
        yield "  To try a script for a GPU here: python -m torchamp run --device cpu script.py"


def _cpu_instructions() -> str:
    names = {
        "AVX512-BF16": "_is_avx512_bf16_supported",
        "AMX": "_is_amx_tile_supported",
        "AMX-FP16": "_is_amx_fp16_supported",
    }
    # Private functions of torch: a version may lack one.
    found = [name for name, function in names.items() if getattr(torch.cpu, function, bool)()]
    return ", ".join([torch.backends.cpu.get_cpu_capability(), *found])


def _device(device: str, name: str) -> Iterator[str]:
    yield f"{device}: {name}"
    default = torch.get_autocast_dtype(torch.device(device).type)
    yield f"  autocast casts to {_name(default)} unless told otherwise"
    seconds = {dtype: _matrix_product_seconds(device, dtype) for dtype in _DTYPES}
    for dtype in _DTYPES[1:]:
        ratio = seconds[torch.float32] / seconds[dtype]
        verdict = f"{ratio:.1f}x faster than" if ratio >= 1 else f"{1 / ratio:.1f}x slower than"
        yield f"  {_name(dtype)} matrix product: {verdict} float32"
    for dtype in _DTYPES:
        yield f"  GradScaler, {_name(dtype)} gradients: {_gradient_check(device, dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _matrix_product_seconds(device: str, dtype: torch.dtype) -> float:
    """The shortest of a few runs."""
    matrix = torch.ones(_SIZE, _SIZE, device=device, dtype=dtype)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        (matrix @ matrix)[0, 0].item()  # waits for the result
        times.append(time.perf_counter() - begin)
    return min(times)


def _gradient_check(device: str, dtype: torch.dtype) -> str:
    """Whether the operator unscales and finds an overflow in gradients of this dtype."""
    scale = torch.full((), 8.0, device=device)
    for value, expected, overflow in ((16.0, 2.0, 0.0), (torch.inf, torch.inf, 1.0)):
        gradient = torch.full((100,), value, device=device, dtype=dtype)
        found_inf = torch.zeros((), device=device)
        try:
            torch.ops.torchamp.unscale_([gradient], found_inf, scale)
        except RuntimeError as error:
            return f"FAILED, {error}"
        if not bool((gradient == expected).all()) or found_inf.item() != overflow:
            return "FAILED, wrong result"
    return "works"
