"""``python -m torchamp run``: an unmodified program on this package."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable
from types import CodeType, ModuleType, TracebackType
from typing import Any

from torchamp._cpu_device import map_cuda_to_cpu
from torchamp.patching import patch


def run(
    script: str | None, arguments: list[str], device: str | None = None, module: str | None = None
) -> None:
    """Run a program as ``python script arguments`` does, but with PyTorch's AMP names patched.

    ``script`` is a file (a compiled one too), a folder or an archive with a ``__main__.py``, or "-"
    for the standard input. With a ``module`` it is ``python -m module arguments``.
    ``device="cpu"`` also maps CUDA to the CPU. Raises what the program raises, SystemExit among it.
    """
    start = _of_module(module) if script is None else _of_script(script)
    if device == "cpu":
        # torch.compile builds its tables from what the names mean when it is loaded, and any
        # optimizer loads it.
        importlib.import_module("torch._dynamo")
    patch()
    if device == "cpu":
        map_cuda_to_cpu()
    sys.argv = ["-m" if script is None else script, *arguments]
    try:
        start()
    except BaseException:
        _hide_own_frames()
        raise


def _of_module(module: str | None) -> Callable[[], None]:
    # The current folder is in sys.path already: torchamp itself was started with -m.
    return functools.partial(_execute_found, module or "__main__", module is not None)


def _of_script(script: str) -> Callable[[], None]:
    """What runs a script, read before the patch as Python reads it before anything else."""
    if script == "-":
        source = sys.stdin.buffer.read()
        _set_first_path("")
        return functools.partial(_execute, source, _main_module("<stdin>"))
    if pkgutil.get_importer(script) is not None:  # a folder or an archive
        _set_first_path(os.path.join(os.getcwd(), script), always=True)
        return _of_module(None)
    path = os.path.join(os.getcwd(), script)  # as Python has it, with its dots and links
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        print(f"torchamp: can't open file {path!r}: {error}", file=sys.stderr)
        sys.exit(2)
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    # Python asks the same: of the name, and of the first two bytes.
    if path.endswith(".pyc") or content[:2] == importlib.util.MAGIC_NUMBER[:2]:
        main = _main_module(path, importlib.machinery.SourcelessFileLoader("__main__", path))
        return functools.partial(_execute_compiled, content, main)
    main = _main_module(path, importlib.machinery.SourceFileLoader("__main__", path))
    return functools.partial(_execute, content, main)


def _set_first_path(path: str, *, always: bool = False) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = path
    elif always:  # python -P takes the first one away
        sys.path.insert(0, path)


def _main_module(path: str, loader: Any = importlib.machinery.BuiltinImporter) -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(
        __annotations__={},
        __builtins__=builtins,
        __cached__=None,
        __file__=path,
        __loader__=loader,
        __package__=None,
        __spec__=None,
    )
    return main


def _execute(source: bytes, main: ModuleType) -> None:
    sys.modules["__main__"] = main
    code = compile(source, main.__dict__["__file__"], "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _execute_compiled(content: bytes, main: ModuleType) -> None:
    sys.modules["__main__"] = main
    code = pkgutil.read_code(io.BytesIO(content))
    if code is None:
        raise RuntimeError("Bad magic number in .pyc file")
    exec(code, main.__dict__)


def _execute_found(name: str, is_module: bool) -> None:
    """Find a module by the import system and run it, by what Python itself calls for that."""
    sys.modules["__main__"] = _main_module(name)
    runpy._run_module_as_main(name, is_module)  # type: ignore[attr-defined]


def _hide_own_frames() -> None:
    """Let the traceback that Python prints at its end begin with the script."""
    hook = sys.excepthook  # the script's own, perhaps

    def hook_without_own_frames(
        kind: type[BaseException], exception: BaseException, trace: TracebackType | None
    ) -> None:
        own_last = {f.__code__ for f in (_execute, _execute_compiled, _execute_found)}
        trace = _frames_after(trace, own_last)
        hook(kind, exception.with_traceback(trace), trace)

    sys.excepthook = hook_without_own_frames


def _frames_after(trace: TracebackType | None, codes: set[CodeType]) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace.tb_next if trace is not None else None
