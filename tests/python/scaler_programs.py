"""Random programs of GradScaler calls, and machines that run them.

A program is data: options, optimizers with their parameters, and a list of calls with arguments. A
machine runs it on one implementation and gives, after every call, all that can be observed. Two
machines are compared call by call; a program that makes them differ is cut down and printed.
"""

from __future__ import annotations

import copy
import pickle
import random
import statistics
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from stock_and_ours import differences, outcome, scaler_state, snapshot

INF = float("inf")
NAN = float("nan")

VALUES = ["finite", "inf", "-inf", "nan", "subnormal", "-0.0", "large", "zero"]
LAYOUTS = ["contiguous", "transposed", "gapped", "sparse", "sparse with duplicates"]
SHAPES = {"vector": (5,), "matrix": (2, 3), "scalar": (), "no elements": (0,), "empty": (2, 0, 3)}
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
OPTIMIZERS = ["SGD", "momentum", "Adam", "fused SGD", "fused Adam", "attributes", "argument"]
STAGES = ["no scale", "READY", "UNSCALED", "STEPPED"]

# Calls on one optimizer, and on the scaler
OPTIMIZER_CALLS = ["unscale_", "step", "step with closure", "check"]
SCALER_CALLS = [
    "scale",
    "scale a list",
    "scale nonsense",
    "update",
    "update(number)",
    "update(tensor)",
    "update(wrong)",
    "get_scale",
    "state_dict",
    "load_state_dict",
    "load nothing",
    "load without scale",
    "pickle",
    "deepcopy",
    "assign _scale",
    "set_growth_factor",
    "set_backoff_factor",
    "set_growth_interval",
]
# Preparations, not calls of the scaler
PREPARATIONS = ["grads", "backward", "zero_grad"]


@dataclass(frozen=True)
class Call:
    name: str
    optimizer: int | None = None
    argument: Any = None

    def __str__(self) -> str:
        target = "" if self.optimizer is None else f" of optimizer {self.optimizer}"
        return f"{self.name}{target}" + ("" if self.argument is None else f": {self.argument}")


@dataclass(frozen=True)
class Program:
    seed: int
    options: dict[str, Any]
    optimizers: list[tuple[str, list[tuple[str, str]]]]  # kind, (shape, dtype) of parameters
    calls: list[Call] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"program {self.seed}", f"  GradScaler('cpu', **{self.options})"]
        lines += [f"  optimizer {i}: {kind} {p}" for i, (kind, p) in enumerate(self.optimizers)]
        return "\n".join(lines + [f"  {i:3d} {call}" for i, call in enumerate(self.calls)])


# --- making programs -----------------------------------------------------------------------------


def make_program(seed: int, optimizer_kinds: list[str] | None = None) -> Program:
    """The program of a seed: mostly legal iterations, with calls at any place in between."""
    choose = random.Random(seed)
    options = {
        "init_scale": choose.choice([1.0, 3.0, 8.0, 0.1, 1024.0, 65536.0, 2.0**40]),
        "growth_factor": choose.choice([2.0, 1.5, 3.0]),
        "backoff_factor": choose.choice([0.5, 0.25, 0.7]),
        "growth_interval": choose.choice([1, 2, 3, 5]),
    }
    optimizers = [
        make_optimizer(choose, choose.choice(optimizer_kinds or OPTIMIZERS))
        for _ in range(choose.choice([1, 1, 2, 3]))
    ]
    program = Program(seed, options, optimizers)
    for _ in range(choose.choice([0, 0, 1, 2])):  # before any scale
        program.calls.append(make_extra(choose, len(optimizers)))
    for _ in range(choose.randint(2, 6)):
        program.calls.extend(make_iteration(choose, program.optimizers))
    return program


def make_optimizer(choose: random.Random, kind: str) -> tuple[str, list[tuple[str, str]]]:
    params = []
    for _ in range(choose.randint(1, 4)):
        dtype = choose.choice(["float32", "float32", "float64", "bfloat16"])
        if choose.random() < 0.04:
            dtype = "float16"
        params.append((choose.choice(list(SHAPES)), dtype))
    return kind, params


def make_gradient(choose: random.Random, kind: str, shape: str, dtype: str) -> Any:
    """(values, layout, seed), or None for no gradient."""
    if choose.random() < 0.08:
        return None
    values = "finite" if choose.random() < 0.6 else choose.choice(VALUES)
    layouts = ["contiguous"]
    if shape == "matrix":
        layouts += ["transposed", "gapped"]
    if shape == "vector":
        layouts.append("gapped")
    if kind == "SGD" and dtype in ("float32", "float64") and shape in ("vector", "matrix"):
        layouts += ["sparse", "sparse with duplicates"] * 3
    return values, choose.choice(layouts), choose.randrange(2**31)


def make_iteration(choose: random.Random, optimizers: list) -> list[Call]:
    """An iteration as it should be, then disturbed."""
    calls = [Call("scale", argument=choose.random())]
    for index, (kind, params) in enumerate(optimizers):
        if choose.random() < 0.2:
            calls.append(Call("backward", index, choose.uniform(-4, 4)))
        else:
            grads = [make_gradient(choose, kind, *param) for param in params]
            calls.append(Call("grads", index, grads))
    for index in range(len(optimizers)):
        if choose.random() < 0.5:
            calls.append(Call("unscale_", index))
    for index in range(len(optimizers)):
        if choose.random() < 0.9:
            calls.append(Call("step", index))
    calls.append(Call("update"))
    for _ in range(choose.choice([0, 1, 1, 2, 3, 4])):
        unscaled = [i for i, call in enumerate(calls) if call.name in ("unscale_", "step")]
        place = choose.randint(0, len(calls))
        if choose.random() < 0.5:  # the rarer stages
            place = choose.choice([0, *(i + 1 for i in unscaled)])
        calls.insert(place, make_extra(choose, len(optimizers)))
    if choose.random() < 0.15:
        calls.pop(choose.randrange(len(calls)))
    return calls


def make_extra(choose: random.Random, optimizers: int) -> Call:
    name = choose.choice(OPTIMIZER_CALLS + SCALER_CALLS + ["zero_grad"])
    if name in OPTIMIZER_CALLS or name == "zero_grad":
        return Call(name, choose.randrange(optimizers))
    factor = choose.choice([2.0, 1.25, 3.0, 10.0])
    scale = choose.choice([1.0, 0.125, 7.0, 4096.0, 2.0**30, INF])
    interval = choose.choice([2, 3, 6])
    arguments = {
        "scale": choose.random(),
        "scale a list": [choose.random(), choose.random()],
        "update(number)": scale,
        "update(tensor)": (scale, choose.choice(["float32", "float64", "bfloat16"])),
        "update(wrong)": choose.choice(["two elements", "requires grad", "meta", "text"]),
        "load_state_dict": {
            "scale": choose.choice([16.0, 5.0, 2.0**20]),
            "growth_factor": factor,
            "backoff_factor": choose.choice([0.5, 0.3]),
            "growth_interval": interval,
            "_growth_tracker": choose.randrange(interval),
        },
        "assign _scale": choose.choice([2.0, 48.0, 2.0**12]),
        "set_growth_factor": factor,
        "set_backoff_factor": choose.choice([0.5, 0.25, 0.9]),
        "set_growth_interval": choose.randint(1, 4),
    }
    return Call(name, argument=arguments.get(name))


# --- gradients -----------------------------------------------------------------------------------


def special_value(values: str, dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return {
        "inf": INF,
        "-inf": -INF,
        "nan": NAN,
        "subnormal": info.smallest_normal / 8,
        "-0.0": -0.0,
        # Far from the largest: by any scale of these programs it stays finite.
        "large": 1e4 if dtype is torch.float16 else 1e20,
        "zero": 0.0,
    }[values]


def build_gradient(spec: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
    if spec is None:
        return None
    values, layout, seed = spec
    generator = torch.Generator().manual_seed(seed)
    if layout.startswith("sparse"):
        return build_sparse(values, layout, shape, dtype, generator)
    if layout == "transposed":
        grad = torch.randn(shape[::-1], generator=generator).to(dtype).t()
    elif layout == "gapped":
        base = torch.randn((*shape[:-1], 2 * shape[-1]), generator=generator).to(dtype)
        grad = base[..., ::2]
    else:
        grad = torch.randn(shape, generator=generator).to(dtype)
    if values != "finite" and grad.numel():
        grad[tuple(seed % size for size in shape)] = special_value(values, dtype)
    return grad


def build_sparse(values, layout, shape, dtype, generator):
    rows = [0, 0, shape[0] - 1] if "duplicates" in layout else [shape[0] - 1]
    dense = torch.randn((len(rows), *shape[1:]), generator=generator).to(dtype)
    if values != "finite":
        dense[0] = special_value(values, dtype)
    return torch.sparse_coo_tensor([rows], dense, shape, check_invariants=False)


# --- optimizers ----------------------------------------------------------------------------------


class Attributes(torch.optim.SGD):
    """Unscales and skips by itself, told by attributes."""

    _step_supports_amp_scaling = True

    def __init__(self, params):
        super().__init__(params, lr=0.5)
        self.log = []

    @torch.no_grad()
    def step(self, closure=None):
        scale = None if self.grad_scale is None else float(self.grad_scale)
        self.log.append((scale, float(self.found_inf)))
        if float(self.found_inf) == 0.0:
            for param in self.param_groups[0]["params"]:
                if param.grad is not None:
                    param -= param.grad.to(param.dtype) / (scale or 1.0)
        return len(self.log)


class Argument(torch.optim.SGD):
    """The older protocol: told by the scaler itself."""

    _step_supports_amp_scaling = True

    def __init__(self, params):
        super().__init__(params, lr=0.5)
        self.log = []

    def step(self, closure=None, *, grad_scaler=None):
        flags = grad_scaler._check_inf_per_device(self)
        self.log.append((grad_scaler.get_scale(), [flag.item() for flag in flags.values()]))
        return self.log[-1]


MAKERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.5),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.5, momentum=0.5),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.5),
    "fused SGD": lambda params: torch.optim.SGD(params, lr=0.5, fused=True),
    "fused Adam": lambda params: torch.optim.Adam(params, lr=0.5, fused=True),
    "attributes": Attributes,
    "argument": Argument,
}


# --- machines ------------------------------------------------------------------------------------


class Machine:
    """Runs the calls of a program on one class of scaler."""

    optimizer_raised = False

    def __init__(self, program: Program, scaler_class: type):
        self.program = program
        self.scaler = scaler_class("cpu", **program.options)
        self.optimizers = [self.make_optimizer(*spec) for spec in program.optimizers]

    def make_optimizer(self, kind: str, params: list[tuple[str, str]]) -> Any:
        tensors = []
        for shape, dtype in params:
            tensor = torch.ones(SHAPES[shape], dtype=DTYPES[dtype])
            tensors.append(torch.nn.Parameter(tensor))
        return MAKERS[kind](tensors)

    def params(self, index: int) -> list[torch.Tensor]:
        groups = self.optimizers[index].param_groups
        return [param for group in groups for param in group["params"]]

    def stage(self, index: int) -> str:
        """Read without making an entry."""
        if self.scaler._scale is None:
            return "no scale"
        entry = self.scaler._per_optimizer_states.get(id(self.optimizers[index]))
        return "READY" if entry is None else entry["stage"].name

    def run(self, call: Call) -> Any:
        """The outcome of a call and everything that can be observed after it."""
        result = outcome(lambda: self.perform(call))
        return {
            "value": result.value,
            "error": result.error,
            "warned": result.warned,
            "scaler": scaler_state(self.scaler),
            "optimizers": [self.observe(index) for index in range(len(self.optimizers))],
        }

    def observe(self, index: int) -> Any:
        optimizer = self.optimizers[index]
        params = self.params(index)
        return {
            "stage": self.stage(index),
            "params": [snapshot(param) for param in params],
            "grads": [snapshot(param.grad) for param in params],
            "attributes": (hasattr(optimizer, "grad_scale"), hasattr(optimizer, "found_inf")),
            "log": snapshot(getattr(optimizer, "log", None)),
        }

    def perform(self, call: Call) -> Any:
        return getattr(self, METHODS[call.name])(call)

    # Preparations

    def grads(self, call: Call) -> None:
        for param, spec in zip(self.params(call.optimizer), call.argument, strict=True):
            param.grad = build_gradient(spec, tuple(param.shape), param.dtype)

    def backward(self, call: Call) -> None:
        loss = sum((param.float() * call.argument).sum() for param in self.params(call.optimizer))
        self.scale(replace(call, argument=loss)).backward()

    def zero_grad(self, call: Call) -> None:
        for param in self.params(call.optimizer):
            param.grad = None

    # Calls on an optimizer

    def unscale(self, call: Call) -> Any:
        return self.scaler.unscale_(self.optimizers[call.optimizer])

    def step(self, call: Call) -> Any:
        try:
            return self.scaler.step(self.optimizers[call.optimizer])
        except Exception as error:
            files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            self.optimizer_raised = any("/torch/optim/" in file for file in files)
            raise

    def step_with_closure(self, call: Call) -> Any:
        return self.scaler.step(self.optimizers[call.optimizer], closure=lambda: 1.0)

    def check(self, call: Call) -> Any:
        return list(self.scaler._check_inf_per_device(self.optimizers[call.optimizer]).values())

    # Calls on the scaler

    def scale(self, call: Call) -> Any:
        loss = call.argument
        return self.scaler.scale(loss if isinstance(loss, torch.Tensor) else torch.tensor(loss))

    def scale_a_list(self, call: Call) -> Any:
        return self.scaler.scale([torch.tensor([value]) for value in call.argument])

    def scale_nonsense(self, call: Call) -> Any:
        return self.scaler.scale([1.0])

    def update(self, call: Call) -> Any:
        return self.scaler.update()

    def update_with_number(self, call: Call) -> Any:
        return self.scaler.update(call.argument)

    def update_with_tensor(self, call: Call) -> Any:
        value, dtype = call.argument
        return self.scaler.update(torch.tensor(value, dtype=DTYPES[dtype]))

    def update_with_wrong(self, call: Call) -> Any:
        wrong = {
            "two elements": torch.ones(2),
            "requires grad": torch.ones((), requires_grad=True),
            "meta": torch.ones((), device="meta"),
            "text": "2.0",
        }
        return self.scaler.update(wrong[call.argument])

    def get_scale(self, call: Call) -> Any:
        return self.scaler.get_scale(), self.scaler._get_growth_tracker()

    def state_dict(self, call: Call) -> Any:
        return self.scaler.state_dict()

    def load_state_dict(self, call: Call) -> Any:
        return self.scaler.load_state_dict(dict(call.argument))

    def load_nothing(self, call: Call) -> Any:
        return self.scaler.load_state_dict({})

    def load_without_scale(self, call: Call) -> Any:
        return self.scaler.load_state_dict({"growth_factor": 2.0})

    def pickle(self, call: Call) -> Any:
        self.scaler = pickle.loads(pickle.dumps(self.scaler))

    def deepcopy(self, call: Call) -> Any:
        self.scaler = copy.deepcopy(self.scaler)

    def assign_scale(self, call: Call) -> Any:
        if self.scaler._scale is not None:
            self.scaler._scale = torch.tensor(call.argument)

    def set_growth_factor(self, call: Call) -> Any:
        return self.scaler.set_growth_factor(call.argument)

    def set_backoff_factor(self, call: Call) -> Any:
        return self.scaler.set_backoff_factor(call.argument)

    def set_growth_interval(self, call: Call) -> Any:
        # Counted from the tracker: below it, torchamp grows and stock never does again.
        return self.scaler.set_growth_interval(self.scaler._get_growth_tracker() + call.argument)


METHODS = {
    name: name for name in PREPARATIONS + OPTIMIZER_CALLS + SCALER_CALLS if name.isidentifier()
} | {
    "unscale_": "unscale",
    "step with closure": "step_with_closure",
    "scale a list": "scale_a_list",
    "scale nonsense": "scale_nonsense",
    "update(number)": "update_with_number",
    "update(tensor)": "update_with_tensor",
    "update(wrong)": "update_with_wrong",
    "load nothing": "load_nothing",
    "load without scale": "load_without_scale",
    "assign _scale": "assign_scale",
}


# --- comparing -----------------------------------------------------------------------------------


@dataclass
class Coverage:
    """What the programs exercised."""

    transitions: Counter = field(default_factory=Counter)  # (stage, call)
    gradients: Counter = field(default_factory=Counter)  # kinds that reached an unscale
    optimizers: Counter = field(default_factory=Counter)
    errors: Counter = field(default_factory=Counter)  # (call, exception)
    lengths: list[int] = field(default_factory=list)

    def before(self, machine: Machine, call: Call, grads: dict[int, list]) -> None:
        if call.name in PREPARATIONS:
            return
        every = range(len(machine.optimizers))
        for index in every if call.optimizer is None else [call.optimizer]:
            self.transitions[machine.stage(index), call.name] += 1
        if call.name in ("unscale_", "step") and machine.stage(call.optimizer) == "READY":
            params = machine.program.optimizers[call.optimizer][1]
            for (shape, dtype), spec in zip(params, grads.get(call.optimizer, []), strict=False):
                kinds = ["none"] if spec is None else [*spec[:2], shape, dtype]
                self.gradients.update(set(kinds))

    def report(self) -> str:
        lines = [
            f"programs {len(self.lengths)}, calls {sum(self.lengths)}, "
            f"median length {statistics.median(self.lengths)}",
            f"optimizers {dict(self.optimizers)}",
            "gradients " + ", ".join(f"{kind} {n}" for kind, n in sorted(self.gradients.items())),
            "errors " + ", ".join(f"{c}: {e} {n}" for (c, e), n in sorted(self.errors.items())),
            f"{'calls by stage':24s}" + "".join(f"{stage:>10s}" for stage in STAGES),
        ]
        for name in OPTIMIZER_CALLS + SCALER_CALLS:
            counts = "".join(f"{self.transitions[stage, name]:10d}" for stage in STAGES)
            lines.append(f"  {name:22s}{counts}")
        return "\n".join(lines)


def first_difference(
    program: Program, reference: type, candidate: type, coverage: Coverage | None = None
) -> str | None:
    """Runs a program on two classes of scaler. None if nothing differs, else what and where."""
    return compare(Machine(program, reference), Machine(program, candidate), coverage)


def compare(reference: Machine, candidate: Machine, coverage: Coverage | None = None) -> str | None:
    """Runs two machines of a program. None if nothing differs, else what and where."""
    program = reference.program
    machines = reference, candidate
    grads: dict[int, list] = {}
    for place, call in enumerate(program.calls):
        if coverage:
            coverage.before(machines[0], call, grads)
        if call.name == "grads":
            grads[call.optimizer] = call.argument
        expected, got = (machine.run(call) for machine in machines)
        if coverage and expected.get("error"):
            coverage.errors[call.name, expected["error"].__name__] += 1
        if all(machine.optimizer_raised for machine in machines):
            break  # what then is left behind differs on purpose
        lines = differences(expected, got)
        if lines:
            return f"call {place} ({call}):\n" + "\n".join(f"    {line}" for line in lines[:5])
    if coverage:
        coverage.lengths.append(len(program.calls))
        coverage.optimizers.update(kind for kind, _ in program.optimizers)
    return None


def shrink(program: Program, differs: Any) -> Program:
    """Leaves out calls one by one as long as the program still makes a difference."""
    place = len(program.calls) - 1
    while place >= 0:
        shorter = replace(program, calls=program.calls[:place] + program.calls[place + 1 :])
        if differs(shorter):
            program = shorter
        place -= 1
    return program
