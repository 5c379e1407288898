"""The names of ``torch.amp.autocast_mode``."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import types
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.amp.autocast_mode import (
    _cast,  # noqa: F401  as the two below: names that others use
    _enter_autocast,  # noqa: F401
    _exit_autocast,  # noqa: F401
    autocast_decorator,
    custom_bwd,
    custom_fwd,
    is_autocast_available,
)

from torchamp import _C

__all__ = ["autocast", "autocast_decorator", "custom_bwd", "custom_fwd", "is_autocast_available"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
# What torch.jit.script looks for in a function, and says when it finds it.
_NO_SCRIPT = {"__script_unsupported": "@autocast() decorator is not supported in script mode"}


class _Exported(threading.local):
    """Entries of this thread that torch.export recorded, with the settings before them."""

    def __init__(self) -> None:
        self.entries: list[tuple[autocast, tuple[bool, torch.dtype, bool]]] = []


_exported = _Exported()
_is_compiled = torch.compiler.is_dynamo_compiling
_is_function_mode_enabled = torch._C._is_torch_function_mode_enabled


def _is_exported() -> bool:
    """Whether torch.export records the calls; stock's own methods tell it of entries and exits."""
    if not _is_function_mode_enabled():
        return False
    recorder = torch.fx.experimental.proxy_tensor.PreDispatchTorchFunctionMode
    modes = torch.overrides._get_current_function_mode_stack()
    return any(isinstance(mode, recorder) for mode in modes)


def _not_compiled_by_itself(function: _Function) -> _Function:
    """After a graph break torch.compile tries each function that is called: not this one."""
    frames = torch._C._dynamo.eval_frame
    skip_it = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    frames.set_code_exec_strategy(function.__code__, skip_it)
    return function


# What torch.compile sees made inside a compiled function: it knows stock's class and no subclass.
_compiled_region: Callable[..., Any] = torch.amp.autocast
if torch.__version__.startswith("2.11."):
    # There it asks whether the result of __new__ is an instance, which it cannot tell of stock's.
    @contextlib.contextmanager
    def _compiled_region(
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> Iterator[None]:
        # Not torch.amp.autocast: patch() may have put this package's class there.
        with torch.amp.autocast_mode.autocast(device_type, dtype, enabled, cache_enabled):
            yield


class autocast(torch.amp.autocast):
    """``torch.autocast`` on the guard that C++ programs use; same arguments, same results.

    Use it around the forward pass and the loss, as a context manager or as a decorator::

        with torchamp.autocast("cuda"):
            loss = loss_fn(model(data), target)

    One object may be entered several times, nested (recursion through a decorated function does it)
    or from several threads at once: what to restore is kept for each entry. A nested region with
    another dtype drops cached casts of weights, which have the outer dtype. A decorated generator,
    coroutine or async generator function runs its body inside the region: entered at each resume
    and left at each suspension, so that its caller and other tasks are not affected.

    Does not synchronise. Errors and warnings are those of ``torch.autocast``: ValueError for a
    ``device_type`` that is no string, RuntimeError for one without autocast, UserWarning and a
    region without casts for an unsupported dtype or a CUDA device that is not there.
    """

    if not TYPE_CHECKING:  # the arguments are those of __init__

        @functools.wraps(torch.amp.autocast.__init__, assigned=())
        def __new__(cls, *args, **kwargs):
            if cls is autocast and _is_compiled():
                return _compiled_region(*args, **kwargs)
            return object.__new__(cls)

    @_not_compiled_by_itself
    def __enter__(self) -> autocast:
        if _is_compiled():
            super().__enter__()
        elif _is_exported():
            super().__enter__()
            previous = (self.prev, self.prev_fastdtype, self.prev_cache_enabled)
            _exported.entries.append((self, previous))
        else:
            self.prev, self.prev_fastdtype, self.prev_cache_enabled = _C.enter_autocast(
                self, self.device, self.fast_dtype, self._enabled, self._cache_enabled
            )
        return self

    @_not_compiled_by_itself
    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool | None:
        if _is_compiled():
            return super().__exit__(exc_type, exc_val, exc_tb)
        if _is_exported() and _exported.entries and _exported.entries[-1][0] is self:
            _, previous = _exported.entries.pop()
            self.prev, self.prev_fastdtype, self.prev_cache_enabled = previous
        elif _C.exit_autocast(self):
            return False
        # As stock: recorded, entered on another thread, or not entered at all.
        return super().__exit__(exc_type, exc_val, exc_tb)

    def __call__(self, func: _Function) -> _Function:
        """Decorate a function; raises TypeError for what cannot be called (torch 2.11 does not)."""
        for recognises, decorate in _DECORATORS.items():
            if recognises(func):
                decorated = decorate(self, func)
                vars(decorated).update(_NO_SCRIPT)
                return decorated
        return super().__call__(func)


class _Resumed:
    """A generator or what an awaitable iterates over, each step of it inside the region.

    ``yield from`` and ``await`` hand on all that happens to the outer function: values, exceptions,
    the end.
    """

    def __init__(self, region: autocast, steps: Any) -> None:
        self._region = region
        self._steps = steps

    def __iter__(self) -> _Resumed:
        return self

    __await__ = __iter__

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        with self._region:
            return self._steps.send(value)

    def throw(self, *exception: Any) -> Any:
        with self._region:
            return self._steps.throw(*exception)

    def close(self) -> None:
        with self._region:
            self._steps.close()


def _decorate_generator(
    region: autocast, func: Callable[..., Generator[Any, Any, Any]]
) -> Callable[..., Generator[Any, Any, Any]]:
    @functools.wraps(func)
    def decorated(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _Resumed(region, func(*args, **kwargs)))

    # types.coroutine has made the function's generators awaitable: the same for ours.
    code = getattr(func, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_ITERABLE_COROUTINE:
        return types.coroutine(decorated)
    return decorated


def _decorate_coroutine(
    region: autocast, func: Callable[..., Coroutine[Any, Any, Any]]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(func)
    async def decorated(*args: Any, **kwargs: Any) -> Any:
        return await _Resumed(region, func(*args, **kwargs).__await__())

    return decorated


def _first_step(generator: AsyncGenerator[Any, Any]) -> Any:
    """Start an async generator that an event loop shall not close: the one around it does."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return generator.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)


def _decorate_async_generator(
    region: autocast, func: Callable[..., AsyncGenerator[Any, Any]]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    @functools.wraps(func)
    async def decorated(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = func(*args, **kwargs)
        step = _first_step(generator)
        while True:
            try:
                value = await _Resumed(region, step)
            except StopAsyncIteration:
                return
            try:
                step = generator.asend((yield value))
            except GeneratorExit:
                await _Resumed(region, generator.aclose())
                raise
            except BaseException as exception:
                step = generator.athrow(exception)

    return decorated


_DECORATORS: dict[Callable[[Any], bool], Callable[[autocast, Any], Any]] = {
    inspect.isgeneratorfunction: _decorate_generator,
    inspect.iscoroutinefunction: _decorate_coroutine,
    inspect.isasyncgenfunction: _decorate_async_generator,
}
