"""Where GradScaler differs from stock on purpose: stock would corrupt parameters or state."""

import math
import warnings

import pytest
import torch
import torchamp
from stock_and_ours import OURS, STOCK, outcome, parameters

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


@pytest.mark.parametrize("scale", [0.0, 1e-40])
def test_a_collapsed_scale_skips_instead_of_destroying_parameters(scale):
    param, optimizer = one_parameter(1.0)
    scaler = torchamp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.update(scale)
    scaler.step(optimizer)
    assert param.tolist() == [1.0, 1.0]


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


def test_views_that_share_a_storage_are_each_unscaled():
    """As the buckets of DistributedDataParallel are."""
    bucket = torch.full((6,), 8.0)
    optimizer = torch.optim.SGD(parameters(bucket[:2], bucket[2:5], bucket[5:]), lr=1.0)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
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
    scaler.scale(torch.ones(()))  # forgets the failed one only
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(good)
    scaler.unscale_(bad)
    scaler.update()
    assert scaler.get_scale() == 4.0


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
