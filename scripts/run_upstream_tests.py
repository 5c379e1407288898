#!/usr/bin/env python3
"""Run PyTorch's own AMP tests, by name, on PyTorch and on torchamp in PyTorch's place.

    python scripts/run_upstream_tests.py FOLDER [--table docs/upstream_tests.md]

FOLDER is a checkout of pytorch at the version that is installed, or as near as can be had; only
its test/ is read, nothing of it belongs into this repository. Needs the package expecttest.

Each test runs twice, in processes of their own: as it is, and with torchamp's names for
`torch.{autocast,GradScaler}` and those of `torch.amp`, `torch.cuda.amp` and `torch.cpu.amp`. Only
the tests named below are taken from a file, so that what else it imports need not exist in another
version of PyTorch. Exits with 1 if a test has another result on torchamp than on PyTorch, except
where torchamp differs on purpose.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# File, class, and a pattern for the whole name of a test before it is made for each device and type
TESTS = [
    (
        "test_torch.py",
        "TestTorchDeviceType",
        r"test_grad_scal(ing|er|e)_\w+|test_pickle_gradscaler",
    ),
    ("test_torch.py", "TestTorchDeviceType", r"test_params_invalidated_with_grads_invalidated\w+"),
    ("test_cuda.py", "TestCudaOptims", r"test_grad_scaling_autocast_fused_optimizers"),
    ("test_autocast.py", "TestAutocastCPU", r"test_\w+"),
    ("test_autocast.py", "TestTorchAutocast", r"test_\w+"),
    ("test_autocast.py", r"TestAutocastOps|TestAutocastDeviceType", r"test_\w+"),
    ("test_jit_autocast.py", "TestAutocast", r"test_\w+"),
    ("test_jit_autocast.py", "TestJitTraceAutocast", r"test_\w+"),
    ("test_autograd.py", r"TestAutograd|TestAutogradDeviceType", r"test_\w*autocast\w*"),
    ("dynamo/test_ctx_manager.py", "CtxManagerTests", r"test_\w*autocast\w*"),
]

# Where torchamp differs on purpose or has to, and why
ON_PURPOSE = {
    r"test_grad_scaler_deprecated_warning": "the mirrors give no FutureWarning",
    r"TestAutocastCPU\.test_cpu_autocast_deprecated_warning": "the mirrors give no FutureWarning",
    r"test_jit_autocast_softmax_cpu|test_script_autocast_enable_and_check|test_scripted_aliasing": (
        "TorchScript compiles PyTorch's own autocast class only"
    ),
}

# Test files that others import a class from, and where that class really is
ELSEWHERE = {"test_jit": "torch.testing._internal.jit_utils"}

Results = dict[str, str]  # "file::Class.test" -> "passed", "skipped: why", "failed: why"


# --- the child: one file on one implementation ---------------------------------------------------


def wanted(file: str, cls: str, test: str) -> bool:
    return any(file == f and re.fullmatch(c, cls) and re.fullmatch(t, test) for f, c, t in TESTS)


class KeepWanted(ast.NodeTransformer):
    """Drops the tests that are not asked for, and imports what is there of each import."""

    def __init__(self, file: str):
        self.file = file

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        def keep(item: ast.stmt) -> bool:
            is_test = isinstance(item, ast.FunctionDef) and item.name.startswith("test")
            return not is_test or wanted(self.file, node.name, item.name)

        node.body = [item for item in node.body if keep(item)] or [ast.Pass()]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node  # an import inside is the test's own business

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | list[ast.stmt]:
        if node.module == "__future__" or any(alias.name == "*" for alias in node.names):
            return node
        module = ELSEWHERE.get(node.module, node.module)
        template = "try:\n    from {0} import {1} as {2}\nexcept ImportError:\n    {2} = _missing"
        return [
            statement
            for alias in node.names
            for statement in ast.parse(
                template.format(module, alias.name, alias.asname or alias.name)
            ).body
        ]


class Missing:
    """In place of a decorator, a maker of one or a class that this version of PyTorch has not."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return lambda function: function


def load_tests_of(folder: Path, file: str) -> ModuleType:
    path = folder / "test" / file
    tree = KeepWanted(file).visit(ast.parse(path.read_text(), str(path)))
    ast.fix_missing_locations(tree)
    spec = importlib.util.spec_from_loader(path.stem, loader=None)
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    module._missing = Missing
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module


def substitute() -> None:
    import torch
    import torchamp

    for theirs, ours in [
        (torch, torchamp),
        (torch.amp, torchamp.amp),
        (torch.cuda.amp, torchamp.cuda.amp),
        (torch.cpu.amp, torchamp.cpu.amp),
    ]:
        for name in ("autocast", "GradScaler", "custom_fwd", "custom_bwd"):
            if hasattr(theirs, name) and hasattr(ours, name):
                setattr(theirs, name, getattr(ours, name))


class Collect(unittest.TestResult):
    """Keeps one word for each test."""

    def __init__(self) -> None:
        super().__init__()
        self.results: Results = {}

    def note(self, test: unittest.TestCase, text: str) -> None:
        self.results[".".join(test.id().split(".")[-2:])] = text

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.note(test, "passed")

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.note(test, f"skipped: {reason}")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        lines = str(err[1]).strip().splitlines() or [""]
        self.note(test, f"failed: {err[0].__name__}: {lines[0][:160]}")

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addError(test, err)


def each_test(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from each_test(item)
        else:
            yield item


def run_child(folder: Path, file: str, implementation: str, output: Path) -> None:
    if implementation == "torchamp":
        substitute()
    module = load_tests_of(folder, file)
    vars(module).pop("load_tests", None)  # wants to be the main program
    collected = Collect()
    for test in each_test(unittest.defaultTestLoader.loadTestsFromModule(module)):
        name = test._testMethodName
        if any(file == f and re.match(pattern, name) for f, _, pattern in TESTS):
            test.run(collected)
    output.write_text(json.dumps(collected.results))


# --- the parent ----------------------------------------------------------------------------------


def run_file(folder: Path, file: str, implementation: str) -> Results:
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "results.json"
        command = [sys.executable, __file__, str(folder), "--child", file, implementation]
        environment = {**os.environ, "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"}
        done = subprocess.run(
            [*command, str(output)],
            env=environment,
            cwd=temporary,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if not output.exists():
            last = done.stdout.strip().splitlines()[-1:] or [""]
            return {f"{file}::(import)": f"failed: {last[0][:160]}"}
        results = json.loads(output.read_text())
    return {f"{file}::{name}": text for name, text in results.items()}


def purpose(test: str) -> str | None:
    for pattern, reason in ON_PURPOSE.items():
        if re.search(pattern, test):
            return reason
    return None


def word(text: str) -> str:
    return text.partition(":")[0]


def table(stock: Results, ours: Results, folder: Path) -> str:
    import torch

    version = (folder / "version.txt").read_text().strip()
    ran = [test for test in sorted(stock) if not stock[test].startswith("skipped")]
    passed = [test for test in ran if stock[test] == "passed"]
    same = [test for test in passed if ours.get(test) == "passed"]
    lines = [
        f"## torch {torch.__version__.partition('+')[0]}, tests of {version}",
        "",
        f"{len(ran)} tests run on a CPU, {len(stock) - len(ran)} more are skipped there. "
        f"{len(passed)} pass on PyTorch, {len(same)} of these on torchamp.",
        "",
        "| test | PyTorch | torchamp |",
        "| --- | --- | --- |",
    ]
    for test in ran:
        result = word(ours.get(test, "missing"))
        if result != word(stock[test]) and purpose(test):
            result += f" ({purpose(test)})"
        lines.append(f"| `{test}` | {word(stock[test])} | {result} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a checkout of pytorch, outside this repository")
    parser.add_argument("--table", type=Path, help="append the results to this Markdown file")
    parser.add_argument("--file", action="append", help="only this file, as test_torch.py")
    parser.add_argument("--child", nargs=3, metavar=("FILE", "WITH", "OUTPUT"), help="internal")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.child:
        file, implementation, output = arguments.child
        run_child(folder, file, implementation, Path(output))
        return 0

    stock: Results = {}
    ours: Results = {}
    for file in arguments.file or sorted({file for file, _, _ in TESTS}):
        if not (folder / "test" / file).exists():
            print(f"{file}: not in {folder}")
            continue
        stock |= run_file(folder, file, "torch")
        ours |= run_file(folder, file, "torchamp")
    worse = [
        test
        for test, text in sorted(stock.items())
        if word(ours.get(test, "missing")) != word(text) and not purpose(test)
    ]
    for test, text in sorted(stock.items()):
        if text.startswith("failed"):
            print(f"on PyTorch itself: {test}: {text}")
    for test in worse:
        print(f"differs: {test}: PyTorch {stock[test]}, torchamp {ours.get(test)}")
    report = table(stock, ours, folder)
    print("\n".join(report.splitlines()[:3]))
    if arguments.table:
        with arguments.table.open("a") as stream:
            stream.write("\n" + report)
    return 1 if worse or not stock else 0


if __name__ == "__main__":
    sys.exit(main())
