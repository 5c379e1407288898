"""Where GradScaler differs from stock on purpose: stock would corrupt parameters or state."""

import math
import pickle
import warnings
import weakref
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import torchamp
from stock_and_ours import OURS, STOCK, assert_same, outcome, parameters
from torch.utils.weak import TensorWeakRef

INF = float("inf")


class Failing(torch.optim.SGD):
    """Its step raises as often as told."""

    failures = 1

    def step(self, closure=None):
        if self.failures > 0:
            self.failures -= 1
            raise MemoryError
        return super().step()


class FailingFused(Failing):
    _step_supports_amp_scaling = True

    def step(self, closure=None):
        self.seen = float(self.grad_scale)
        if self.failures > 0:
            self.failures -= 1
            raise MemoryError


class Slots:
    """What it takes to be stepped, and no more."""

    __slots__ = ("param_groups", "step")

    def __init__(self, optimizer):
        self.param_groups = optimizer.param_groups
        self.step = optimizer.step


def one_parameter(grad=8.0, cls=torch.optim.SGD, **options):
    params = parameters(torch.full((2,), grad))
    return params[0], cls(params, lr=1.0, **options)


@pytest.mark.parametrize("grad", [1e36, -1e36])
def test_a_finite_gradient_that_unscales_to_infinity_is_an_overflow(grad):
    found = {}
    for amp in (STOCK, OURS):
        param, optimizer = one_parameter(grad)
        scaler = amp.scaler(init_scale=2.0**-10)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        found[amp.name] = param.isfinite().all().item(), scaler.get_scale()
    assert found == {"stock": (False, 2.0**-10), "torchamp": (True, 2.0**-11)}


FUSED = {
    "SGD": lambda params: torch.optim.SGD(params, lr=1.0, fused=True),
    "Adam": lambda params: torch.optim.Adam(params, lr=1.0, fused=True),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1.0, fused=True),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=1.0, fused=True),
}
OPTIMIZERS = {"not fused": lambda params: torch.optim.SGD(params, lr=1.0), **FUSED}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("scale", [0.0, 1e-40, 2.0**-128, -(2.0**-128), math.nan])
def test_a_collapsed_scale_skips_instead_of_destroying_parameters(scale, make):
    (param,) = params = parameters(torch.ones(2))
    scaler = torchamp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.update(scale)
    optimizer = make(params)
    scaler.step(optimizer)
    assert param.tolist() == [1.0, 1.0]
    assert scaler._found_inf_per_device(optimizer)[torch.device("cpu")] == 1.0


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("scale", [2.0**-128 + 2.0**-149, 2.0**-126, -8.0, INF])
def test_a_scale_that_has_a_reciprocal_steps(scale, make):
    params = parameters(torch.tensor([2.0**-126, 0.0]))
    scaler = torchamp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.update(scale)
    optimizer = make(params)
    scaler.step(optimizer)
    assert scaler._found_inf_per_device(optimizer)[torch.device("cpu")] == 0.0
    assert params[0].isfinite().all()


def test_update_takes_any_int_that_a_float_can_hold():
    scaler = torchamp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.update(10**30)
    assert scaler.get_scale() == torch.tensor(1e30).item()


def test_growth_fires_when_the_tracker_is_above_the_interval():
    scales = {}
    for amp in (STOCK, OURS):
        _, optimizer = one_parameter()
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 7})
        scaler.set_growth_interval(5)
        scaler.unscale_(optimizer)
        scaler.update()
        scales[amp.name] = scaler.get_scale(), scaler._get_growth_tracker()
    assert scales == {"stock": (8.0, 8), "torchamp": (16.0, 0)}


def test_a_gradient_shared_by_parameters_is_unscaled_once():
    grads = {}
    for amp in (STOCK, OURS):
        grad = torch.full((2,), 8.0)
        optimizer = torch.optim.SGD(parameters(grad, grad), lr=1.0)
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        scaler.unscale_(optimizer)
        grads[amp.name] = grad[0].item()
    assert grads == {"stock": 1 / 8, "torchamp": 1.0}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_views_that_share_a_storage_are_each_unscaled(make):
    """As the buckets of DistributedDataParallel are."""
    bucket = torch.full((6,), 8.0)
    params = parameters(bucket[:2], bucket[2:5], bucket[5:], torch.ones(0), torch.ones(0))
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scaler.step(make(params))
    assert bucket.tolist() == [1.0] * 6


def test_a_freed_address_is_not_remembered():
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    param, optimizer = one_parameter()
    for _ in range(5):
        param.grad = None
        param.grad = torch.full((2,), 8.0)  # where the last one was, most likely
        scaler.unscale_(optimizer)
        scaler.update(8.0)
        assert param.grad.tolist() == [1.0, 1.0]


def test_a_sliding_window_is_refused():
    grad = torch.full((6,), 8.0).as_strided((4, 3), (1, 1))
    optimizer = torch.optim.SGD(parameters(torch.ones(1), grad), lr=1.0)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    with pytest.raises(RuntimeError, match=r"gradient 1 of shape \[4, 3\]"):
        scaler.unscale_(optimizer)
    assert grad[0, 0] == 8.0
    assert optimizer.param_groups[0]["params"][0].grad.item() == 1.0


def test_an_expanded_gradient_changes_nothing_before_it_raises():
    first = torch.full((2,), 8.0)
    optimizer = torch.optim.SGD(parameters(first, torch.ones(1).expand(4)), lr=1.0)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    with pytest.raises(RuntimeError, match="more than one element"):
        scaler.unscale_(optimizer)
    assert first.tolist() == [8.0, 8.0]


@pytest.mark.parametrize("fused", [False, True])
def test_a_positional_closure_is_refused(fused):
    param, optimizer = one_parameter(fused=fused)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    with pytest.raises(RuntimeError, match="Closure"):
        scaler.step(optimizer, lambda: 1.0)
    assert param.tolist() == [1.0, 1.0]
    scaler.step(optimizer)


@pytest.mark.parametrize(
    "outputs",
    [{"loss": torch.ones(1)}, [{"loss": torch.ones(1)}], (torch.ones(1), [{}]), {}],
    ids=["dict", "in a list", "nested", "empty"],
)
def test_scale_of_a_mapping_is_refused(outputs):
    scaler = torchamp.GradScaler("cpu")
    with pytest.raises(TypeError, match="mapping"):
        scaler.scale(outputs)


@pytest.mark.parametrize("new_scale", [4, True, torch.tensor([4.0]), torch.tensor([[4.0]])])
def test_update_takes_an_int_and_any_shape_of_one_element(new_scale):
    scaler = torchamp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.update(new_scale)
    assert scaler.get_scale() == float(new_scale)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("init_scale", 0.0, ValueError),
        ("init_scale", -1.0, ValueError),
        ("init_scale", INF, ValueError),
        ("init_scale", math.nan, ValueError),
        ("init_scale", 1e39, ValueError),
        ("init_scale", 1e-50, ValueError),
        ("init_scale", 2.0**-128, ValueError),
        ("growth_factor", INF, ValueError),
        ("growth_factor", math.nan, ValueError),
        ("growth_factor", 1.0, AssertionError),
        ("backoff_factor", 0.0, ValueError),
        ("backoff_factor", -0.5, ValueError),
        ("backoff_factor", math.nan, ValueError),
        ("backoff_factor", 1.0, AssertionError),
    ],
)
def test_options_that_would_corrupt_are_refused(option, value, error):
    with pytest.raises(error, match=option) as raised:
        torchamp.GradScaler("cpu", **{option: value})
    assert str(value) in str(raised.value)
    torchamp.GradScaler("cpu", **{option: value}, enabled=False)


def test_the_smallest_scale_that_can_be_divided_by():
    smallest = 2.0**-128 + 2.0**-149
    assert torchamp.GradScaler("cpu", init_scale=smallest).get_scale() == smallest
    with pytest.raises(ValueError, match="1/init_scale overflows float32"):
        torchamp.GradScaler("cpu", init_scale=2.0**-128 + 2.0**-150)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("growth_interval", None),
        ("growth_interval", "3"),
        ("growth_interval", 2.0),
        ("growth_interval", True),
        ("growth_interval", torch.tensor(2.5)),
        ("growth_interval", 2**63),
        ("growth_interval", -(2**63) - 1),
        ("growth_interval", 2**63 - 1),
        ("growth_interval", torch.tensor(3)),
        ("growth_interval", np.int64(3)),
        ("growth_factor", None),
        ("growth_factor", "3"),
        ("growth_factor", torch.tensor([3.0])),
        ("growth_factor", torch.tensor(3.0)),
        ("growth_factor", np.float32(3)),
        ("growth_factor", 3),
        ("growth_factor", 10**400),
        ("backoff_factor", None),
        ("backoff_factor", torch.tensor([0.5])),
        ("backoff_factor", True),
        ("backoff_factor", np.True_),
        ("growth_factor", Fraction(3)),
        ("growth_factor", torch.nn.Parameter(torch.tensor(3.0))),
        ("growth_factor", torch.tensor(3 + 0j)),
    ],
    ids=str,
)
def test_values_that_a_setter_took_are_numbers_where_they_are_for_stock(name, value):
    def update(amp):
        _, optimizer = one_parameter()
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        getattr(scaler, f"set_{name}")(value)
        scaler.unscale_(optimizer)
        scaler.update()
        return scaler.get_scale()

    assert_same(update)


@pytest.mark.parametrize("state", ["abc", [1], (1,), {1}], ids=str)
def test_a_state_that_is_no_dict_is_refused_as_by_stock(state):
    assert assert_same(lambda amp: amp.scaler().load_state_dict(state)).error is TypeError
    with pytest.raises(TypeError, match=type(state).__name__):
        torchamp.GradScaler("cpu").load_state_dict(state)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda path: torch.save(torchamp.GradScaler("cpu").state_dict(), path), r"torch\.load"),
        (
            lambda path: torch.save({"scale": 1.0}, path, _use_new_zipfile_serialization=False),
            r"torch\.load",
        ),
        (
            lambda path: torch.jit.script(torch.nn.Linear(2, 2)).save(path),
            "TorchScript.* no state of an enabled",
        ),
        (lambda path: Path(path).write_text("hello"), "not a file that C\\+\\+ wrote"),
        (lambda path: Path(path).write_bytes(b""), "not a file that C\\+\\+ wrote"),
    ],
    ids=["torch.save", "older torch.save", "TorchScript", "text", "empty"],
)
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_file_of_another_kind_is_named(write, says, tmp_path):
    path = str(tmp_path / "file")
    write(path)
    with pytest.raises(RuntimeError, match=says):
        torchamp.load_state(path)


@pytest.mark.parametrize("missing", ["scale", "growth_factor", "_growth_tracker"])
def test_a_missing_key_changes_nothing_and_is_named(missing):
    scaler = torchamp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    before = scaler.state_dict()
    state = {key: 3 for key in before if key != missing}
    with pytest.raises(KeyError, match=missing):
        scaler.load_state_dict(state)
    assert scaler.state_dict() == before
    assert scaler._init_scale == 65536.0


@pytest.mark.parametrize("unscale", [False, True])
def test_after_a_failed_step_the_next_iteration_works(unscale):
    for amp in (STOCK, OURS):
        param, optimizer = one_parameter(cls=Failing)
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        if unscale:
            scaler.unscale_(optimizer)
        with pytest.raises(MemoryError):
            scaler.step(optimizer)
        assert param.tolist() == [1.0, 1.0]
        # The next iteration, as after an out-of-memory error that was caught
        param.grad = None
        scaler.scale(param.sum()).backward()
        if amp is STOCK:
            assert outcome(lambda s=scaler, o=optimizer: s.unscale_(o)).error is RuntimeError
            continue
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert param.tolist() == [0.0, 0.0]
        assert scaler.state_dict()["_growth_tracker"] == 1
        assert "_failed_steps" not in vars(scaler)


def test_a_failed_step_can_be_tried_again():
    param, optimizer = one_parameter(cls=Failing)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    with pytest.raises(MemoryError):
        scaler.step(optimizer)
    scaler.step(optimizer)  # the gradients are not divided a second time
    scaler.update()
    assert param.tolist() == [0.0, 0.0]
    assert scaler.state_dict()["_growth_tracker"] == 1
    assert "_failed_steps" not in vars(scaler)


def test_a_failed_step_of_one_optimizer_leaves_the_other_alone():
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    _, good = one_parameter(INF)
    _, bad = one_parameter(cls=Failing)
    scaler.unscale_(good)
    with pytest.raises(MemoryError):
        scaler.step(bad)
    scaler.scale(torch.ones(()))
    bad.param_groups[0]["params"][0].grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(good)
    scaler.unscale_(bad)
    scaler.update()
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_failed_step_is_tried_again_unless_gradients_are_new(set_to_none):
    """Two optimizers: the loss of the second is scaled between the two tries of the first."""
    param, optimizer = one_parameter(cls=Failing)
    _, other = one_parameter(1.0)
    optimizer.zero_grad()
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(param.sum()).backward()
    with pytest.raises(MemoryError):
        scaler.step(optimizer)
    scaler.scale(torch.ones(()))  # the loss of the second
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(other)
    scaler.step(optimizer)
    assert param.grad.tolist() == [1.0, 1.0]
    scaler.update()

    optimizer.zero_grad(set_to_none)
    optimizer.failures = 1
    scaler.scale(param.sum()).backward()
    with pytest.raises(MemoryError):
        scaler.step(optimizer)
    optimizer.zero_grad(set_to_none)
    scaler.scale(param.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert param.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("optimizer_class", [Failing, "slots", "proxy"])
def test_the_error_of_a_failed_step_is_its_own(optimizer_class):
    param, optimizer = one_parameter(cls=Failing)
    kept = optimizer
    if optimizer_class == "slots":
        optimizer = Slots(kept)
    elif optimizer_class == "proxy":
        optimizer = weakref.proxy(kept)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    with pytest.raises(MemoryError):
        scaler.step(optimizer)
    scaler.step(optimizer)
    assert param.tolist() == [0.0, 0.0]


def test_a_failed_fused_step_may_have_taken_its_attributes_away():
    class Tidy(FailingFused):
        def step(self, closure=None):
            try:
                super().step()
            finally:
                del self.grad_scale, self.found_inf

    _, optimizer = one_parameter(cls=Tidy)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    with pytest.raises(MemoryError):
        scaler.step(optimizer)


@pytest.mark.parametrize("call", ["step", "unscale_", "clip_grad_norm_"])
def test_gradients_that_may_be_mixed_after_a_failed_step_are_an_error(call):
    param, optimizer = one_parameter(cls=Failing)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    with pytest.raises(MemoryError):
        scaler.step(optimizer)
    scaler.scale(param.sum()).backward()  # added to unscaled ones
    arguments = (1.0,) if call == "clip_grad_norm_" else ()
    with pytest.raises(RuntimeError, match="sums of unscaled and scaled"):
        getattr(scaler, call)(optimizer, *arguments)
    scaler.update()
    optimizer.zero_grad()
    scaler.scale(param.sum()).backward()
    scaler.step(optimizer)
    assert param.tolist() == [0.0, 0.0]


def test_gradients_may_be_mended_between_two_tries():
    param, optimizer = one_parameter(cls=Failing)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    with pytest.raises(MemoryError):
        scaler.step(optimizer)
    torch.nn.utils.clip_grad_norm_([param], 1e9)
    scaler.step(optimizer)
    assert param.tolist() == [0.0, 0.0]


def test_an_optimizer_made_anew_after_a_failed_step_starts_afresh():
    """Its id may be that of the first one."""
    (param,) = parameters(torch.ones(2))
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)

    def attempt(failures):
        optimizer = Failing([param], lr=1.0)
        optimizer.failures = failures
        optimizer.zero_grad()
        scaler.scale(param.sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(20):
        with pytest.raises(MemoryError):
            attempt(1)
        before = param.tolist()
        attempt(0)
        assert param.tolist() == [before[0] - 1.0, before[1] - 1.0]


def test_a_scaler_is_pickled_after_a_failed_step():
    _, optimizer = one_parameter(cls=Failing)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    with pytest.raises(MemoryError):
        scaler.step(optimizer)
    scaler._per_optimizer_states.clear()
    assert pickle.loads(pickle.dumps(scaler)).get_scale() == 8.0


def test_gradients_of_a_failed_step_are_not_kept():
    param, optimizer = one_parameter(cls=Failing)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(param.sum()).backward()
    with pytest.raises(MemoryError):
        scaler.step(optimizer)
    scaler.scale(torch.ones(()))
    grad = TensorWeakRef(param.grad)
    optimizer.zero_grad()
    assert grad() is None


def test_a_failed_fused_step_leaves_no_attribute_behind():
    """Stock leaves `grad_scale` there and multiplies it in again at the next step."""
    seen = {}
    for amp in (STOCK, OURS):
        _, optimizer = one_parameter(cls=FailingFused)
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        with pytest.raises(MemoryError):
            scaler.step(optimizer)
        scaler.step(optimizer)
        seen[amp.name] = optimizer.seen
    assert seen == {"stock": 64.0, "torchamp": 8.0}


def test_a_flag_that_was_summed_over_processes_still_skips_a_fused_step():
    """Fused optimizers skip at 1 only; stock hands the 2 over, and parameters become NaN."""

    def summing(base):
        class Summing(base):
            def unscale_(self, optimizer):
                super().unscale_(optimizer)
                flags = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
                for flag in flags.values():
                    flag.mul_(2)  # all_reduce over two processes with an overflow each

        return Summing("cpu", init_scale=8.0)

    left = {}
    for base in (torch.amp.GradScaler, torchamp.GradScaler):
        scaler = summing(base)
        param = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([param], lr=1.0, fused=True)
        scaler.scale(torch.ones(()))
        param.grad = torch.tensor([torch.inf, 1.0])
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        left[base] = param.tolist()
    assert left[torchamp.GradScaler] == [1.0, 1.0]
    assert left[torch.amp.GradScaler] != [1.0, 1.0]


def test_a_failed_fused_step_keeps_the_users_own_scale():
    _, optimizer = one_parameter(cls=FailingFused)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    optimizer.grad_scale = 0.5
    with pytest.raises(MemoryError):
        scaler.step(optimizer)
    assert optimizer.grad_scale == 0.5
    assert not hasattr(optimizer, "found_inf")
    scaler.step(optimizer)
    assert optimizer.seen == 4.0


def test_complex_gradients_are_unscaled():
    """Stock's operator knows no complex numbers."""
    for amp in (STOCK, OURS):
        grad = torch.tensor([8 + 16j, complex(0, 8)])
        optimizer = torch.optim.SGD(parameters(grad), lr=1.0)
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        result = outcome(lambda s=scaler, o=optimizer: s.unscale_(o))
        if amp is STOCK:
            assert result.error is NotImplementedError
        else:
            assert grad.tolist() == [1 + 2j, 1j]


def test_messages_say_what_to_do():
    scaler = torchamp.GradScaler("cpu")
    param, optimizer = one_parameter()
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    for call in (scaler.step, scaler.unscale_):
        with pytest.raises(RuntimeError, match=r"update\(\)"):
            call(optimizer)
    scaler.update()
    param.grad = None
    with pytest.raises(AssertionError, match="frozen"):
        scaler.step(optimizer)


def test_no_warning_in_a_whole_iteration():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler = torchamp.GradScaler("cpu")
        param, optimizer = one_parameter(grad=INF)
        scaler.scale(param.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
