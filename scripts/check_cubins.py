#!/usr/bin/env python3
"""Checks the machine code of the CUDA kernels in a library or a single cubin.

    python scripts/check_cubins.py build/src/libtorchamp.so [--markdown]

Fails unless every kernel is there for every architecture, keeps within its registers and shared
memory, spills nothing, and moves gradients by 128-bit instructions, several loads in flight. Needs
no GPU, only cuobjdump: from PATH or from the triton package that torch brings.
"""

import argparse
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
PTX = "sm_120"  # how cuobjdump names PTX for compute_120

# Four element types, each with its own loop; as kInFlight in src/ops/cuda/chunk.cuh.
LOOPS = 4
IN_FLIGHT = 4

# What the system takes of each block's shared memory from sm_90 on, if there is any.
RESERVED_SHARED = 1024

# 64 registers allow 1024 threads on a multiprocessor of every architecture.
MAX_REGISTERS = 64


@dataclass(frozen=True)
class Rule:
    variants: int  # how many instantiations of the kernel there are
    shared: int  # most bytes of shared memory
    loads: bool = False  # reads gradients
    stores: bool = False  # writes gradients


RULES = {
    "unscale": Rule(variants=2, shared=0, loads=True, stores=True),
    "grad_norm": Rule(variants=2, shared=64, loads=True),
    "clip_factor": Rule(variants=1, shared=128),
    "apply_factor": Rule(variants=2, shared=0, loads=True, stores=True),
    "update_scale": Rule(variants=1, shared=0),
}


@dataclass
class Kernel:
    name: str
    variant: str  # template arguments
    architecture: str
    registers: int = 0
    stack: int = 0
    shared: int = 0
    loads: int = 0  # LDG.128
    batches: int = 0  # runs of IN_FLIGHT such loads before anything is stored or branched on
    stores: int = 0  # STG.128
    local: int = 0  # loads and stores of local memory: spills or arrays that are not in registers

    def number(self):
        return int(self.architecture.removeprefix("sm_"))

    def problems(self):
        rule = RULES[self.name]
        if self.registers > MAX_REGISTERS:
            yield f"uses {self.registers} registers, more than {MAX_REGISTERS}"
        if self.stack or self.local:
            yield f"uses local memory: {self.stack} bytes, {self.local} accesses"
        if self.shared > rule.shared:
            yield f"uses {self.shared} bytes of shared memory, more than {rule.shared}"
        if rule.loads and self.batches < LOOPS:
            yield f"has {self.batches} batches of {IN_FLIGHT} 128-bit loads, fewer than {LOOPS}"
        if rule.stores and self.stores < LOOPS * IN_FLIGHT:
            yield f"has {self.stores} 128-bit stores, fewer than {LOOPS * IN_FLIGHT}"


def find_cuobjdump():
    found = shutil.which("cuobjdump")
    if found:
        return found
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        path = pathlib.Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"
        if path.exists():
            return str(path)
    sys.exit("check_cubins: no cuobjdump in PATH, and no triton package that has one")


def dump(tool, option, path):
    """The lines that cuobjdump prints; for `-sass` there may be hundreds of thousands."""
    run = subprocess.run([tool, option, path], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"check_cubins: cuobjdump {option} {path}: {run.stderr.strip()}")
    return run.stdout.splitlines()


def kernel_of(mangled):
    """Name and template arguments, or None for what is no kernel of ours."""
    match = re.search(r"8torchamp4cuda\d+([a-z_]+)_kernelI((?:Li\d+E)+)", mangled)
    return match and (match[1], ",".join(re.findall(r"Li(\d+)E", match[2])))


class Kernels:
    """All kernels of a file, by architecture and name, with what cuobjdump says of them."""

    def __init__(self, tool, path):
        self._found = {}
        self._architecture = ""  # the last one read; a cubin's resources come without
        self._read_code(dump(tool, "-sass", path))
        self._read_resources(dump(tool, "-res-usage", path))

    def all(self):
        order = {name: index for index, name in enumerate(RULES)}
        return sorted(
            self._found.values(),
            key=lambda k: (order[k.name], k.variant, k.number()),
        )

    def _get(self, mangled):
        identity = kernel_of(mangled)
        if identity is None or identity[0] not in RULES:
            return None
        key = (self._architecture, *identity)
        return self._found.setdefault(key, Kernel(*identity, self._architecture))

    def _read_resources(self, lines):
        kernel = None
        for line in lines:
            if match := re.match(r"arch = (sm_\d+)", line):
                self._architecture = match[1]
            elif match := re.match(r"\s*Function (\S+):", line):
                kernel = self._get(match[1])
            elif kernel and "REG:" in line:
                values = dict(re.findall(r"(\w+):(\d+)", line))
                kernel.registers = int(values["REG"])
                kernel.stack = int(values["STACK"]) + int(values["LOCAL"])
                kernel.shared = int(values["SHARED"])
                if kernel.shared and kernel.number() >= 90:
                    kernel.shared -= RESERVED_SHARED
                kernel = None

    def _read_code(self, lines):
        kernel, run = None, 0
        for line in lines:
            if match := re.match(r"\s*code for (sm_\d+)", line):
                self._architecture = match[1]
            elif match := re.match(r"\s*Function : (\S+)", line):
                kernel, run = self._get(match[1]), 0
            elif kernel and re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+\S", line):
                run = self._count(kernel, line, run)

    @staticmethod
    def _count(kernel, line, run):
        """Counts one instruction; returns the length of the run of loads that it leaves behind."""
        if re.search(r"\bLDG\.\S*128", line):
            kernel.loads += 1
            run += 1
            if run == IN_FLIGHT:
                kernel.batches += 1
            return run
        if re.search(r"\bSTG\.\S*128", line):
            kernel.stores += 1
            return 0
        if re.search(r"\b(LDL|STL)\b", line):
            kernel.local += 1
        return 0 if re.search(r"\b(BRA|STG)\b", line) else run


def missing(tool, path, kernels):
    """What should be in a library and is not."""
    have = {}
    for kernel in kernels:
        have.setdefault((kernel.architecture, kernel.name), set()).add(kernel.variant)
    present = {kernel.architecture for kernel in kernels}
    for architecture in ARCHITECTURES:
        if architecture not in present:
            yield f"no code for {architecture}"
            continue
        for name, rule in RULES.items():
            count = len(have.get((architecture, name), ()))
            if count != rule.variants:
                yield f"{name}, {architecture}: {count} variants instead of {rule.variants}"
    if not any(f".{PTX}.ptx" in line for line in dump(tool, "-lptx", path)):
        yield f"no PTX for {PTX.replace('sm', 'compute')}"


def is_cubin(path):
    with open(path, "rb") as file:
        header = file.read(20)
    return header[:4] == b"\x7fELF" and int.from_bytes(header[18:20], "little") == 190  # EM_CUDA


def print_table(kernels, markdown):
    head = ("kernel", "arch", "registers", "spills", "shared", "LDG.128", "STG.128")
    rows = [
        (
            f"{k.name}<{k.variant}>",
            k.architecture,
            k.registers,
            k.local,
            k.shared,
            k.loads,
            k.stores,
        )
        for k in kernels
    ]
    if markdown:
        for row in (head, ["---"] * len(head), *rows):
            print("| " + " | ".join(map(str, row)) + " |")
        return
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print(
            "  ".join(
                str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="a library with all architectures, or one cubin")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    arguments = parser.parse_args()

    tool = find_cuobjdump()
    kernels = Kernels(tool, arguments.file).all()
    print_table(kernels, arguments.markdown)
    problems = [
        f"{k.name}<{k.variant}>, {k.architecture}: {problem}"
        for k in kernels
        for problem in k.problems()
    ]
    if not is_cubin(arguments.file):
        problems += missing(tool, arguments.file, kernels)
    elif not kernels:
        problems.append("no kernel of torchamp in this cubin")
    for problem in problems:
        print(f"check_cubins: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
