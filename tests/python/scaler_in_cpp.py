"""A machine that runs the programs of scaler_programs.py on the C++ GradScaler."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torchamp  # noqa: F401  before the bindings: they use the library that it loads
from scaler_programs import DTYPES, Call, Machine, Program
from stock_and_ours import outcome, snapshot

ROOT = Path(__file__).resolve().parents[2]
OPTIMIZERS = ["SGD", "momentum"]  # those that are the same to the last bit in Python and C++
NOT_IN_CPP = {"scale nonsense", "step with closure", "check", "assign _scale"}


def load_bindings() -> Any:
    """The module of tests/bindings. Raises ImportError if it was not built."""
    version = torch.__version__.partition("+")[0]
    built = ROOT / "build" / version / "tests" / "bindings"
    sys.path.insert(0, os.environ.get("TORCHAMP_TEST_BINDINGS", str(built)))
    try:
        return importlib.import_module("torchamp_test_bindings")
    finally:
        sys.path.pop(0)


def for_cpp(program: Program) -> Program:
    """The program without the calls that C++ has not."""

    def has(call: Call) -> bool:
        return call.name not in NOT_IN_CPP and call.argument != "text"

    return replace(program, calls=[call for call in program.calls if has(call)])


class ObservedAsCpp(Machine):
    """Stock in Python, looked at through what both languages have."""

    def run(self, call: Call) -> Any:
        result = outcome(lambda: self.perform(call))
        value = None if call.name == "step" else result.value
        return {
            "value": value,
            "raised": result.error is not None,
            "state": snapshot(self.state()),
            "params": [snapshot(self.params(i)) for i in range(len(self.optimizers))],
            "grads": [
                [snapshot(param.grad) for param in self.params(i)]
                for i in range(len(self.optimizers))
            ],
        }

    def state(self) -> dict[str, float | int]:
        return self.scaler.state_dict()

    def pickle(self, call: Call) -> Any:
        if not self.scaler._per_optimizer_states:  # C++ has no say in when it is saved
            super().pickle(call)

    deepcopy = pickle


class CppMachine(ObservedAsCpp):
    """The GradScaler of the C++ library with the optimizers of torch::optim.

    `reference` runs the same program and is a call ahead: it tells whether saving is legal now.
    """

    def __init__(self, program: Program, bindings: Any, reference: Machine):
        self.program = program
        self.bindings = bindings
        self.reference = reference
        self.scaler = bindings.GradScaler(**program.options)
        self.tensors: list[list[torch.Tensor]] = []
        self.optimizers = []
        for index, (kind, _) in enumerate(program.optimizers):
            copies = [
                torch.nn.Parameter(param.detach().clone()) for param in reference.params(index)
            ]
            self.tensors.append(copies)
            momentum = 0.5 if kind == "momentum" else 0.0
            self.optimizers.append(bindings.SGD(copies, lr=0.5, momentum=momentum))

    def params(self, index: int) -> list[torch.Tensor]:
        return self.tensors[index]

    def scale_a_list(self, call: Call) -> Any:
        return self.scaler.scale_list([torch.tensor([value]) for value in call.argument])

    def update_with_number(self, call: Call) -> Any:
        return self.scaler.update_number(call.argument)

    def update_with_tensor(self, call: Call) -> Any:
        value, dtype = call.argument
        return self.scaler.update_tensor(torch.tensor(value, dtype=DTYPES[dtype]))

    def update_with_wrong(self, call: Call) -> Any:
        wrong = {
            "two elements": torch.ones(2),
            "requires grad": torch.ones((), requires_grad=True),
            "meta": torch.ones((), device="meta"),
        }
        return self.scaler.update_tensor(wrong[call.argument])

    def get_scale(self, call: Call) -> Any:
        return self.scaler.get_scale(), self.scaler.get_growth_tracker()

    def pickle(self, call: Call) -> Any:
        if not self.reference.scaler._per_optimizer_states:
            self.scaler = self.scaler.saved_and_loaded()

    deepcopy = pickle

    def set_growth_interval(self, call: Call) -> Any:
        return self.scaler.set_growth_interval(self.scaler.get_growth_tracker() + call.argument)
