"""Subclasses of torchamp.GradScaler, and stock's subclasses with ours mixed in."""

import pickle

import pytest
import torch
import torch.distributed as dist
import torchamp
from stock_and_ours import OURS, STOCK, assert_same, outcome, parameters, scaler_state
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

INF = float("inf")
METHODS = [
    "_check_scale_growth_tracker",
    "_lazy_init_scale_growth_tracker",
    "_unscale_grads_",
    "_maybe_opt_step",
    "_get_scale_async",
    "_check_inf_per_device",
    "unscale_",
]


def iteration(scaler, optimizer, unscale=True):
    params = [param for group in optimizer.param_groups for param in group["params"]]
    optimizer.zero_grad()
    scaler.scale(sum((param * param).sum() for param in params)).backward()
    if unscale:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("where", ["class", "instance"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fused", [False, True])
def test_an_overridden_method_is_called(method, where, fused):
    def run(amp):
        calls = []

        def recorded(original):
            def record(*args):
                calls.append(method)
                return original(*args)

            return record

        class Subclass(amp.amp.GradScaler):
            pass

        if where == "class":
            setattr(Subclass, method, recorded(getattr(amp.amp.GradScaler, method)))
        scaler = Subclass("cpu", init_scale=8.0)
        if where == "instance":
            setattr(scaler, method, recorded(getattr(scaler, method)))
        optimizer = torch.optim.SGD(parameters(None, None), lr=0.1, fused=fused)
        counts = []
        for unscale in (True, False):
            iteration(scaler, optimizer, unscale)
            counts.append(min(len(calls), 1))
        return counts, optimizer.param_groups[0]["params"], scaler.state_dict()

    assert_same(run)


def test_an_override_sees_stocks_arguments():
    def run(amp):
        seen = []

        class Subclass(amp.amp.GradScaler):
            def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
                seen.append((inv_scale, found_inf.clone(), allow_fp16))
                return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)

        scaler = Subclass("cpu", init_scale=8.0)
        optimizer = torch.optim.SGD(parameters(None), lr=0.1)
        fused = torch.optim.SGD(parameters(None), lr=0.1, fused=True)
        iteration(scaler, optimizer)
        iteration(scaler, fused, unscale=False)
        return seen

    assert_same(run)


def test_an_override_may_allow_half_gradients():
    """The recipe that people use to train pure float16 weights."""

    def run(amp):
        class Half(amp.amp.GradScaler):
            def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
                return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)

        scaler = Half("cpu", init_scale=8.0)
        scaler.scale(torch.ones(()))
        grads = [
            torch.tensor([8.0, 24.0], dtype=torch.half),
            torch.tensor([1.0]),
            torch.tensor([8.0 * (2**-24), 65504.0], dtype=torch.half),
        ]
        optimizer = torch.optim.SGD(parameters(*grads), lr=1.0)
        scaler.step(optimizer)
        scaler.update()
        return grads, scaler.state_dict()

    assert_same(run)


def test_a_subclass_that_shares_the_decision():
    """Reduces the flag over something after unscaling, as data-parallel trainers do."""

    def run(amp):
        class Shared(amp.amp.GradScaler):
            def unscale_(self, optimizer):
                super().unscale_(optimizer)
                for flag in self._found_inf_per_device(optimizer).values():
                    flag.fill_(1.0)

        scaler = Shared("cpu", init_scale=8.0)
        optimizer = torch.optim.SGD(parameters(None), lr=0.1)
        iteration(scaler, optimizer, unscale=False)
        return optimizer.param_groups[0]["params"], scaler.state_dict()

    assert_same(run)


@pytest.mark.parametrize("method", ["unscale_", "_unscale_grads_"])
def test_clip_grad_norm_calls_an_override(method):
    calls = []

    class Subclass(torchamp.GradScaler):
        pass

    def record(self, *args):
        calls.append(method)
        return getattr(torchamp.GradScaler, method)(self, *args)

    setattr(Subclass, method, record)
    scaler = Subclass("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    optimizer = torch.optim.SGD(parameters(torch.tensor([24.0, 32.0])), lr=1.0)
    assert scaler.clip_grad_norm_(optimizer, 1.0).item() == pytest.approx(5.0)
    assert calls == [method]


def test_a_subclass_with_an_async_scale():
    def run(amp):
        class Doubled(amp.amp.GradScaler):
            def _get_scale_async(self):
                return None if self._scale is None else self._scale * 2

        scaler = Doubled("cpu", init_scale=8.0)
        first = scaler.get_scale()
        optimizer = torch.optim.SGD(parameters(torch.full((2,), 16.0)), lr=1.0, fused=True)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        return first, scaler.get_scale(), optimizer.param_groups[0]["params"]

    assert_same(run)


class PickledSubclass(torchamp.GradScaler):
    def __init__(self):
        super().__init__("cpu", init_scale=4.0)
        self.skipped = 3


def test_a_subclass_is_pickled_with_its_attributes():
    made = pickle.loads(pickle.dumps(PickledSubclass()))
    assert (type(made), made.skipped, made.get_scale()) == (PickledSubclass, 3, 4.0)


def test_a_wrapper_by_duck_typing():
    """Accelerate and others keep the scaler as a member and reach into it."""

    class Wrapper:
        def __init__(self, scaler):
            self.scaler = scaler

        def __getattr__(self, name):
            return getattr(self.scaler, name)

    def run(amp):
        wrapper = Wrapper(amp.scaler(init_scale=8.0))
        optimizer = torch.optim.SGD(parameters(None), lr=0.1)
        iteration(wrapper, optimizer)
        return wrapper.get_scale(), wrapper.is_enabled(), wrapper._get_scale_async()

    assert_same(run)


# --- FSDP's scaler -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def process_group():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


class Mixed(ShardedGradScaler, torchamp.GradScaler):
    """Stock's sharded scaler over ours."""


@pytest.mark.parametrize(
    "grads",
    [
        lambda: [torch.full((2,), 8.0)],
        lambda: [torch.tensor([INF, 1.0]), torch.ones(3)],
        lambda: [torch.full((2,), 8.0, dtype=torch.half), torch.ones(2)],
        lambda: [None],
        lambda: [torch.sparse_coo_tensor([[0, 0]], [8.0, 8.0], (2,))],
    ],
    ids=["finite", "inf", "half", "none", "sparse"],
)
def test_sharded_scaler_over_ours(process_group, grads):
    def run(cls):
        # A group of its own: the default argument was made before the process group.
        scaler = cls("cpu", init_scale=8.0, growth_interval=2, process_group=dist.group.WORLD)
        optimizer = torch.optim.SGD(parameters(*grads()), lr=1.0)
        scaler.scale(torch.ones(()))
        results = []
        for call in (
            lambda: scaler.unscale_(optimizer),
            lambda: scaler.step(optimizer),
            lambda: scaler.unscale_(optimizer),
            lambda: scaler.update(),
            lambda: scaler.step(optimizer),
            lambda: scaler.update(),
        ):
            results.append(outcome(call).error)
        state = scaler_state(scaler)
        state.pop("process_group")
        params = optimizer.param_groups[0]["params"]
        return results, state, params, [param.grad for param in params]

    classes = {STOCK: ShardedGradScaler, OURS: Mixed}
    assert_same(lambda amp: run(classes[amp]))


def test_sharded_scaler_is_both(process_group):
    scaler = Mixed("cpu", process_group=dist.group.WORLD)
    assert isinstance(scaler, torchamp.GradScaler)
    assert [cls.__name__ for cls in Mixed.__mro__[:3]] == [
        "Mixed",
        "ShardedGradScaler",
        "GradScaler",
    ]
    scaler.scale(torch.ones(()))
    optimizer = torch.optim.SGD(parameters(torch.ones(1)), lr=1.0)
    with pytest.raises(RuntimeError, match="Closure"):
        scaler.step(optimizer, lambda: None)
