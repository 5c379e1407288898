"""Random programs of calls give the same on stock and on torchamp: values, stages, exceptions.

pytest test_differential.py --programs 20000 --seed 1000     runs more and other programs
"""

import dataclasses
import statistics

import pytest
import torch
import torchamp
from scaler_in_cpp import OPTIMIZERS as CPP_OPTIMIZERS
from scaler_in_cpp import CppMachine, ObservedAsCpp, for_cpp, load_bindings
from scaler_programs import (
    DTYPES,
    LAYOUTS,
    OPTIMIZER_CALLS,
    OPTIMIZERS,
    SCALER_CALLS,
    SHAPES,
    STAGES,
    VALUES,
    Coverage,
    compare,
    first_difference,
    make_program,
    shrink,
)
from torch.amp.grad_scaler import OptState

PROGRAMS = 800


@pytest.fixture(scope="module")
def programs(request):
    count = request.config.getoption("--programs") or PROGRAMS
    first = request.config.getoption("--seed")
    return [make_program(seed) for seed in range(first, first + count)]


def test_random_programs(programs, capsys):
    coverage = Coverage()
    for program in programs:
        found = first_difference(program, torch.amp.GradScaler, torchamp.GradScaler, coverage)
        if found:
            short = shrink(
                program,
                lambda p: first_difference(p, torch.amp.GradScaler, torchamp.GradScaler),
            )
            found = first_difference(short, torch.amp.GradScaler, torchamp.GradScaler)
            pytest.fail(f"{short}\n{found}", pytrace=False)
    with capsys.disabled():
        print(f"\n{coverage.report()}\ndifferences 0")
    for stage in STAGES:
        for call in OPTIMIZER_CALLS + SCALER_CALLS:
            assert coverage.transitions[stage, call] >= 20, (stage, call)
    for kind in [*VALUES, *LAYOUTS, *SHAPES, *DTYPES, "none"]:
        assert coverage.gradients[kind] >= 100, kind
    for kind in OPTIMIZERS:
        assert coverage.optimizers[kind] >= 20, kind
    assert statistics.median(coverage.lengths) >= 8


@pytest.fixture(scope="module")
def bindings():
    try:
        return load_bindings()
    except ImportError as error:
        pytest.skip(f"the module of tests/bindings was not built: {error}")


def cpp_difference(program, bindings, coverage=None, **options):
    """Stock in Python against C++, whose scaler may be given other options."""
    reference = ObservedAsCpp(program, torch.amp.GradScaler)
    changed = dataclasses.replace(program, options={**program.options, **options})
    return compare(reference, CppMachine(changed, bindings, reference), coverage)


def test_random_programs_in_cpp(request, bindings, capsys):
    count = request.config.getoption("--programs") or PROGRAMS
    first = request.config.getoption("--seed")
    coverage = Coverage()
    for seed in range(first, first + count):
        program = for_cpp(make_program(seed, CPP_OPTIMIZERS))
        if cpp_difference(program, bindings, coverage):
            short = shrink(program, lambda p: cpp_difference(p, bindings))
            pytest.fail(f"{short}\n{cpp_difference(short, bindings)}", pytrace=False)
    with capsys.disabled():
        print(f"\nC++: {coverage.report()}\ndifferences 0")
    assert statistics.median(coverage.lengths) >= 8


@pytest.mark.parametrize(
    "options", [{"growth_interval": 9}, {"backoff_factor": 0.6}, {"init_scale": 7.0}]
)
def test_a_difference_in_cpp_is_caught(bindings, options):
    programs = (for_cpp(make_program(seed, CPP_OPTIMIZERS)) for seed in range(30))
    assert any(cpp_difference(program, bindings, **options) for program in programs)


# --- the test finds bugs: each of these is a scaler with one --------------------------------------


def each_gradient(optimizer):
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                grad = param.grad
                yield grad._values() if grad.is_sparse else grad


class TrackerNotResetByOverflow(torchamp.GradScaler):
    def update(self, new_scale=None):
        before = self._growth_tracker.clone() if self._growth_tracker is not None else None
        super().update(new_scale)
        if new_scale is None and self._enabled and self._growth_tracker.item() == 0:
            self._growth_tracker.fill_(min(before.item(), self._growth_interval - 1))


class GrowsOneTooLate(torchamp.GradScaler):
    def update(self, new_scale=None):
        self._growth_interval += 1
        try:
            super().update(new_scale)
        finally:
            self._growth_interval -= 1


class ForgetsBfloat16(torchamp.GradScaler):
    def unscale_(self, optimizer):
        kept = [(g, g.clone()) for g in each_gradient(optimizer) if g.dtype is torch.bfloat16]
        super().unscale_(optimizer)
        for grad, value in kept:
            grad.copy_(value)


class NanIsNoOverflow(torchamp.GradScaler):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        infinite = any(grad.isinf().any() for grad in each_gradient(optimizer))
        for flag in self._found_inf_per_device(optimizer).values():
            flag.fill_(float(infinite))


class LosesTheSignOfZero(torchamp.GradScaler):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        for grad in each_gradient(optimizer):
            grad.add_(0.0)


class FlushesSubnormals(torchamp.GradScaler):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        for grad in each_gradient(optimizer):
            tiny = torch.finfo(grad.dtype).smallest_normal
            grad.masked_fill_(grad.abs() < tiny, 0.0)


class DividesInsteadOfMultiplying(torchamp.GradScaler):
    """Wrong in the last bit, where the scale is no power of two."""

    def unscale_(self, optimizer):
        before = [grad.clone() for grad in each_gradient(optimizer)]
        super().unscale_(optimizer)
        for grad, scaled in zip(each_gradient(optimizer), before, strict=True):
            grad.copy_(scaled / self._scale)


class OnlyTheFirstOptimizerCounts(torchamp.GradScaler):
    def update(self, new_scale=None):
        for key in list(self._per_optimizer_states)[1:]:
            if next(iter(self._per_optimizer_states.values()))["found_inf_per_device"]:
                self._per_optimizer_states[key]["found_inf_per_device"] = {}
        super().update(new_scale)


class StepCanBeRepeated(torchamp.GradScaler):
    def step(self, optimizer, *args, **kwargs):
        result = super().step(optimizer, *args, **kwargs)
        self._per_optimizer_states[id(optimizer)]["stage"] = OptState.UNSCALED
        return result


class StatesSurviveANewScale(torchamp.GradScaler):
    def update(self, new_scale=None):
        states = self._per_optimizer_states
        super().update(new_scale)
        if new_scale is not None:
            self._per_optimizer_states = states


class LoadForgetsLiveTensors(torchamp.GradScaler):
    def load_state_dict(self, state_dict):
        scale = self._scale.clone() if self._scale is not None else None
        super().load_state_dict(state_dict)
        if scale is not None:
            self._scale.copy_(scale)


class PickleForgetsTheTracker(torchamp.GradScaler):
    def __getstate__(self):
        return {**super().__getstate__(), "_init_growth_tracker": 0}


class FusedKeepsAttributes(torchamp.GradScaler):
    def step(self, optimizer, *args, **kwargs):
        result = super().step(optimizer, *args, **kwargs)
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            optimizer.found_inf = torch.zeros(())
        return result


class SkippedStepReturnsFalse(torchamp.GradScaler):
    def step(self, optimizer, *args, **kwargs):
        result = super().step(optimizer, *args, **kwargs)
        return False if result is None else result


class WrongException(torchamp.GradScaler):
    def unscale_(self, optimizer):
        try:
            super().unscale_(optimizer)
        except ValueError as error:
            raise RuntimeError from error


BUGS = [
    TrackerNotResetByOverflow,
    GrowsOneTooLate,
    ForgetsBfloat16,
    NanIsNoOverflow,
    LosesTheSignOfZero,
    FlushesSubnormals,
    DividesInsteadOfMultiplying,
    OnlyTheFirstOptimizerCounts,
    StepCanBeRepeated,
    StatesSurviveANewScale,
    LoadForgetsLiveTensors,
    PickleForgetsTheTracker,
    FusedKeepsAttributes,
    SkippedStepReturnsFalse,
    WrongException,
]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug, programs):
    for program in programs:
        if first_difference(program, torch.amp.GradScaler, bug):
            return
    pytest.fail(f"{bug.__name__} went through {len(programs)} programs")


def test_a_failing_program_is_cut_down_to_the_calls_that_matter(programs):
    def differs(candidate):
        return first_difference(candidate, torch.amp.GradScaler, SkippedStepReturnsFalse)

    program = next(program for program in programs if differs(program))
    short = shrink(program, differs)
    assert len(short.calls) <= 4
    assert differs(short)
    assert "step of optimizer" in str(short)
