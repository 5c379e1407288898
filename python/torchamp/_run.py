"""``python -m torchamp run``: an unmodified script on this package."""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import os
import sys
from types import CodeType, ModuleType, TracebackType

from torchamp._cpu_device import map_cuda_to_cpu
from torchamp.patching import patch


def run(script: str, arguments: list[str], device: str | None = None) -> None:
    """Run a script as ``python script arguments`` does, but with PyTorch's AMP names patched.

    ``device="cpu"`` also maps CUDA to the CPU. Raises what the script raises, SystemExit among it.
    """
    path = os.path.abspath(script)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(f"torchamp: can't open file {path!r}: {error}", file=sys.stderr)
        sys.exit(2)
    if device == "cpu":
        # torch.compile builds its tables from what the names mean when it is loaded, and any
        # optimizer loads it.
        importlib.import_module("torch._dynamo")
    patch()
    if device == "cpu":
        map_cuda_to_cpu()
    main = _main_module(path)
    sys.argv = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # python -P
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    sys.modules["__main__"] = main
    try:
        _execute(source, path, main)
    except BaseException:
        _hide_own_frames()
        raise


def _main_module(path: str) -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(
        __annotations__={},
        __builtins__=builtins,
        __cached__=None,
        __file__=path,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        __package__=None,
        __spec__=None,
    )
    return main


def _execute(source: bytes, path: str, main: ModuleType) -> None:
    code = compile(source, path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _hide_own_frames() -> None:
    """Let the traceback that Python prints at its end begin with the script."""
    hook = sys.excepthook  # the script's own, perhaps

    def hook_without_own_frames(
        kind: type[BaseException], exception: BaseException, trace: TracebackType | None
    ) -> None:
        trace = _frames_after(trace, _execute.__code__)
        hook(kind, exception.with_traceback(trace), trace)

    sys.excepthook = hook_without_own_frames


def _frames_after(trace: TracebackType | None, code: CodeType) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    return trace.tb_next if trace is not None else None
