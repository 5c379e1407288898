"""Maps CUDA to the CPU, for scripts that were written for a GPU (``run --device cpu``).

"cuda" and ``torch.device("cuda")`` stay what they are, so that the script goes the ways it goes on
a GPU, but tensors that are made there or moved there are CPU tensors. New ones come from a few
operators, whose CUDA kernels are replaced; ``Tensor.to`` and its like, which look for the device
before they call an operator, and the names of AMP are wrapped in Python. Autocast keeps CUDA's
default dtype, float16. ``torch.cuda.FloatTensor`` and its like are the CPU's classes.

``cuda()``, ``to("cuda")`` and ``cpu()`` give the same tensor where CUDA gives a copy: a change in
place shows in both.

Not there: CUDA's streams, events, graphs, generators and their states (with them
``torch.random.fork_rng(devices=[0])``), names, properties and capabilities of devices, NCCL,
``torch.nested.nested_tensor(device="cuda")`` (the strided layout), storages made on "cuda",
``pin_memory=True`` where a tensor is made on the CPU, and devices in TorchScript.
``torch.cuda.memory_allocated`` and its like give 0, other memory statistics fail or are empty.
``torch.cuda.is_available`` and ``Tensor.is_cuda`` stay False: scripts that ask go their own way.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils._device import DeviceContext

import torchamp
from torchamp import _C
from torchamp.amp.autocast_mode import _compiled_region, _is_compiled, _not_compiled_by_itself

_CPU = torch.device("cpu")
_library = torch.library.Library("aten", "IMPL")  # the replaced kernels live as long as this
# All operators that make a tensor on a CUDA device by a kernel of their own; others call these.
_SPARSE = [f"sparse_{kind}_tensor" for kind in ("coo", "csr", "csc", "bsr", "bsc", "compressed")]
_FACTORIES = ("empty.memory_format", "empty_strided", "tril_indices", "triu_indices")


def _mapped(value: Any) -> Any:
    """The CPU for a CUDA device or its name; anything else as it is."""
    if isinstance(value, torch.device):
        return _CPU if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


def _map_arguments(
    owner: ModuleType | type, name: str, to_cpu: Callable[[Any], Any] = _mapped
) -> None:
    """Let a function find the CPU wherever it is given CUDA."""
    function: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(function)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        kwargs = {key: to_cpu(value) for key, value in kwargs.items()}
        return function(*map(to_cpu, args), **kwargs)

    setattr(owner, name, mapped)


def _cuda(
    tensor: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    return tensor.to(_CPU, memory_format=memory_format)


def _unchanged(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return tensor


def _do_nothing(owner: ModuleType | type, name: str) -> None:
    """For functions that have nothing to do without a GPU."""

    @functools.wraps(getattr(owner, name))
    def nothing(*args: Any, **kwargs: Any) -> None: ...

    setattr(owner, name, nothing)


def _mapped_type(value: Any) -> Any:
    """The name of the CPU's type for the name of one of CUDA's."""
    return value.replace("torch.cuda.", "torch.") if isinstance(value, str) else value


def _map_tensor_types() -> None:
    """The names like torch.cuda.FloatTensor, as classes and in strings."""
    for name in dir(torch):
        if name.endswith("Tensor") and hasattr(torch.cuda, name):
            setattr(torch.cuda, name, getattr(torch, name))
    for owner, name in ((torch.Tensor, "type"), (torch, "set_default_tensor_type")):
        _map_arguments(owner, name, _mapped_type)


def _allow_capturable() -> None:
    """Let optimizers with capturable=True, which is for CUDA graphs, step on the CPU."""
    name = "_get_capturable_supported_devices"  # each module of an optimizer has its own
    for path, module in list(sys.modules.items()):
        if path.startswith("torch.optim.") and hasattr(module, name):
            setattr(module, name, functools.partial(_with_cpu, getattr(module, name)))


def _with_cpu(devices: Callable[..., list[str]], *args: Any, **kwargs: Any) -> list[str]:
    return [*devices(*args, **kwargs), "cpu"]


def _map_loading() -> None:
    load = torch.load

    @functools.wraps(load)
    def load_on_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = "cpu" if map_location is None else _mapped(map_location)
        return load(f, place, *args, **kwargs)

    torch.load = torch.serialization.load = load_on_cpu
    # What dicts and functions give.
    _map_arguments(torch.serialization, "default_restore_location")


def _let_properties_fail(initialize: Callable[[], None]) -> None:
    """Without a GPU its name and the like fail as in PyTorch, which says what is missing."""
    get_properties = torch.cuda.get_device_properties

    @functools.wraps(get_properties)
    def get_device_properties(device: Any = None) -> Any:
        initialize()
        return get_properties(device)

    torch.cuda.get_device_properties = get_device_properties


# While autocast is on, the CPU casts to its own dtype, which is CUDA's then. Otherwise CUDA's is
# kept where PyTorch keeps it. torch.compile saves and restores all this by the names in torch.
@_not_compiled_by_itself
def _keeper_of_dtype(device_type: str) -> str:
    return _mapped(device_type) if torch._C.is_autocast_enabled("cpu") else device_type


@_not_compiled_by_itself
def _get_autocast_dtype(device_type: str) -> torch.dtype:
    return torch._C.get_autocast_dtype(_keeper_of_dtype(device_type))


@_not_compiled_by_itself
def _set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
    torch._C.set_autocast_dtype(_keeper_of_dtype(device_type), dtype)


@_not_compiled_by_itself
def _is_autocast_enabled(device_type: str = "cuda") -> bool:
    return torch._C.is_autocast_enabled(_mapped(device_type))


@_not_compiled_by_itself
def _set_autocast_enabled(device_type: Any = "cuda", enabled: Any = None) -> None:
    if enabled is None:  # the only argument
        device_type, enabled = "cuda", device_type
    place = _mapped(device_type)
    dtype = _get_autocast_dtype("cuda")
    has_new_keeper = place != device_type and enabled != torch._C.is_autocast_enabled(place)
    torch._C.set_autocast_enabled(place, enabled)
    if has_new_keeper:
        _set_autocast_dtype("cuda", dtype)
        if not enabled:
            torch._C.set_autocast_dtype("cpu", torch.bfloat16)  # PyTorch's default


def _map_autocast_state() -> None:
    for function in (
        _get_autocast_dtype,
        _set_autocast_dtype,
        _is_autocast_enabled,
        _set_autocast_enabled,
    ):
        setattr(torch, function.__name__.removeprefix("_"), function)
    torch.get_autocast_gpu_dtype = functools.partial(_get_autocast_dtype, "cuda")
    torch.set_autocast_gpu_dtype = functools.partial(_set_autocast_dtype, "cuda")


class _Autocast(torchamp.autocast):
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return _compiled_region(*cls._on_cpu(*args, **kwargs))
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*self._on_cpu(*args, **kwargs))

    @_not_compiled_by_itself
    def __enter__(self) -> _Autocast:
        if not _is_compiled():  # CUDA's dtype is this one also while autocast is off
            _C.enter_autocast(self, "cuda", self.fast_dtype, False, self._cache_enabled)
        super().__enter__()
        return self

    @_not_compiled_by_itself
    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool | None:
        result = super().__exit__(exc_type, exc_val, exc_tb)
        if not _is_compiled():
            _C.exit_autocast(self)
        return result

    @staticmethod
    def _on_cpu(
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> tuple[Any, ...]:
        """The arguments of ``torch.autocast`` for the CPU."""
        if _mapped(device_type) != device_type:
            device_type, dtype = "cpu", _get_autocast_dtype("cuda") if dtype is None else dtype
        return device_type, dtype, enabled, cache_enabled


class _CudaAutocast(_Autocast):
    @staticmethod
    def _on_cpu(  # type: ignore[override]
        enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> tuple[Any, ...]:
        return "cpu", dtype, enabled, cache_enabled


class _GradScaler(torchamp.GradScaler):
    def __init__(self, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        super().__init__(_mapped(device), *args, **kwargs)


class _CudaGradScaler(_GradScaler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("cuda", *args, **kwargs)


def _replace_everywhere(replacements: dict[Any, Any]) -> None:
    """Replace classes in PyTorch's AMP modules and in ours, except where patch() does not."""
    owners = (torch, torchamp)
    modules = [
        module
        for owner in owners
        for package in (owner.amp, owner.cuda.amp, owner.cpu.amp)
        for module in (owner, package, package.autocast_mode, package.grad_scaler)
    ]
    for module in modules:
        for name, value in list(vars(module).items()):
            if module is torch.amp.autocast_mode and name == "autocast":
                continue  # torch.compile compares with it
            if isinstance(value, type) and value in replacements:
                setattr(module, name, replacements[value])


def _factory_on_cpu(name: str) -> Callable[..., torch.Tensor]:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        return operator(*args, **{**kwargs, "device": _CPU, "pin_memory": False})

    return make


def _replace_factories() -> None:
    with warnings.catch_warnings():  # of the override, which is meant
        warnings.simplefilter("ignore")
        for name in _FACTORIES:
            _library.impl(name, _factory_on_cpu(name), "CUDA")


def map_cuda_to_cpu() -> None:
    """Map CUDA to the CPU for the rest of the process. Call it after ``torchamp.patch``."""
    _replace_factories()
    _replace_everywhere(
        {
            torch.autocast: _Autocast,
            torchamp.autocast: _Autocast,
            torchamp.cuda.amp.autocast: _CudaAutocast,
            torchamp.GradScaler: _GradScaler,
            torchamp.cuda.amp.GradScaler: _CudaGradScaler,
        }
    )
    for owner in (torch.amp, torch.amp.autocast_mode, torchamp, torchamp.amp.autocast_mode):
        for name in ("custom_fwd", "custom_bwd"):
            _map_arguments(owner, name)
    _map_autocast_state()
    for name in ("tensor", "as_tensor", "asarray", "set_default_device", *_SPARSE):
        _map_arguments(torch, name)
    for name in ("to", "new_tensor"):
        _map_arguments(torch.Tensor, name)
    torch.Tensor.cuda = _cuda  # type: ignore[assignment, method-assign]
    torch.Tensor.pin_memory = _unchanged  # type: ignore[assignment, method-assign]
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        storage.cuda = _unchanged  # type: ignore[assignment, method-assign]
    _map_tensor_types()
    _allow_capturable()
    _map_arguments(DeviceContext, "__init__")  # with torch.device("cuda"):
    _map_loading()
    _let_properties_fail(torch.cuda._lazy_init)
    for name in ("_lazy_init", "set_device", "synchronize"):
        _do_nothing(torch.cuda, name)
    for name in ("__init__", "__enter__", "__exit__"):
        _do_nothing(torch.cuda.device, name)
    torch.cuda.current_device = lambda: 0
