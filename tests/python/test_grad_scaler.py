"""GradScaler behaves as torch.amp.GradScaler: both run side by side, nothing is assumed."""

import copy
import inspect
import pickle
import warnings
from collections import namedtuple

import pytest
import torch
import torchamp
from stock_and_ours import (
    OURS,
    STOCK,
    arguments_of_stock,
    assert_same,
    outcome,
    parameters,
    scaler_state,
    snapshot,
)

INF = float("inf")
NAN = float("nan")


def scaled(implementation, *grads, **options):
    """A scaler that has scaled a loss, and an optimizer whose parameters have these gradients."""
    scaler = implementation.scaler(**{"init_scale": 8.0, **options})
    scaler.scale(torch.ones(()))
    return scaler, torch.optim.SGD(parameters(*grads), lr=0.5)


def everything(scaler, optimizer):
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return {
        "params": params,
        "grads": [param.grad for param in params],
        "scaler": scaler_state(scaler),
    }


# --- construction --------------------------------------------------------------------------------


def test_is_a_stock_scaler():
    assert isinstance(torchamp.GradScaler("cpu"), torch.amp.GradScaler)
    assert torchamp.GradScaler is torchamp.amp.GradScaler
    assert issubclass(torchamp.cuda.amp.GradScaler, torchamp.GradScaler)
    assert issubclass(torchamp.cpu.amp.GradScaler, torchamp.GradScaler)


@pytest.mark.parametrize(
    ("ours", "stock"),
    [
        (torchamp.GradScaler, torch.amp.GradScaler),
        (torchamp.cuda.amp.GradScaler, torch.cuda.amp.GradScaler),
        (torchamp.cpu.amp.GradScaler, torch.cpu.amp.GradScaler),
    ],
)
def test_signature(ours, stock):
    assert arguments_of_stock(ours.__init__) == arguments_of_stock(stock.__init__)


PUBLIC = [name for name in dir(torch.amp.GradScaler) if not name.startswith("__")]


@pytest.mark.parametrize("name", PUBLIC)
def test_has_every_member_of_stock_with_its_parameters(name):
    def names(cls):
        return list(inspect.signature(getattr(cls, name)).parameters)

    assert names(torchamp.GradScaler) == names(torch.amp.GradScaler)


def test_modules_have_the_names_of_stock():
    for ours, stock in [
        (torchamp.amp.grad_scaler, torch.amp.grad_scaler),
        (torchamp.cuda.amp.grad_scaler, torch.cuda.amp.grad_scaler),
        (torchamp.cpu.amp.grad_scaler, torch.cpu.amp.grad_scaler),
    ]:
        for name in stock.__all__:
            assert hasattr(ours, name), (ours.__name__, name)
    for name in ("OptState", "_MultiDeviceReplicator", "_refresh_per_optimizer_state"):
        assert getattr(torchamp.amp.grad_scaler, name) is getattr(torch.amp.grad_scaler, name)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enabled": False},
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"growth_factor": 0.5, "backoff_factor": 2.0},
        {"growth_factor": 1.0, "enabled": False},
        {"backoff_factor": 7.0, "enabled": False},
        {"growth_interval": 0},
        {"growth_interval": -1},
        {"init_scale": 3, "growth_factor": 3, "backoff_factor": 0.25, "growth_interval": 1},
    ],
)
def test_construction(options):
    assert_same(lambda amp: vars(amp.scaler(**options)))


@pytest.mark.parametrize("device", ["cuda", "cpu", "meta", "xpu", "mps", torch.device("cpu"), 7])
def test_any_device_is_accepted(device):
    assert_same(lambda amp: scaler_state(amp.scaler(device)))


def test_positional_arguments():
    assert_same(lambda amp: vars(amp.amp.GradScaler("cpu", 4.0, 3.0, 0.25, 5, True)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize(
    "make", [torchamp.GradScaler, torchamp.cuda.amp.GradScaler], ids=["amp", "cuda.amp"]
)
def test_without_cuda_it_warns_at_the_users_line_and_is_disabled(make):
    with pytest.warns(UserWarning, match="CUDA is not available.  Disabling") as caught:
        scaler = make()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert not scaler.is_enabled()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda_options_are_not_checked():
    options = {"growth_factor": 0.5, "backoff_factor": 3.0}
    assert_same(lambda amp: scaler_state(amp.scaler("cuda", **options)))


def test_mirrors_give_no_deprecation_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torchamp.cpu.amp.GradScaler(init_scale=2.0)
        torchamp.cuda.amp.GradScaler(enabled=False)


# --- scale ---------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "first second")


class Count(list):
    """A subclass of list, to be kept."""


OUTPUTS = {
    "float32": lambda: torch.tensor(3.0),
    "float32 vector": lambda: torch.tensor([1.0, INF, NAN, -0.0, 1e-45]),
    "float64": lambda: torch.ones(2, dtype=torch.float64),
    "half vector overflows": lambda: torch.ones(1, dtype=torch.half),
    "half scalar is promoted": lambda: torch.ones((), dtype=torch.half),
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16),
    "integers are promoted": lambda: torch.arange(3),
    "bool": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.tensor([1 + 2j]),
    "empty": lambda: torch.ones(0),
    "empty list": lambda: [],
    "empty tuple": lambda: (),
    "list": lambda: [torch.ones(1), torch.ones(2)],
    "tuple": lambda: (torch.ones(1),),
    "nested": lambda: [torch.ones(1), (torch.ones(2), [torch.ones(3)])],
    "list subclass": lambda: Count([torch.ones(1)]),
    "namedtuple": lambda: Pair(torch.ones(1), torch.ones(2)),
    "not iterable": lambda: 5,
    "None": lambda: None,
    "float": lambda: 2.0,
    "list of numbers": lambda: [1.0],
    "requires grad": lambda: torch.ones(2, requires_grad=True),
    "sparse": lambda: torch.eye(2).to_sparse(),
}


@pytest.mark.parametrize("outputs", OUTPUTS.values(), ids=OUTPUTS)
def test_scale(outputs):
    def run(amp):
        scaler = amp.scaler()
        result = scaler.scale(outputs())
        return result, scaler_state(scaler)

    assert_same(run)


def test_scale_of_a_generator_is_lazy():
    def run(amp):
        scaler = amp.scaler(init_scale=4.0)
        result = scaler.scale(torch.full((1,), float(i)) for i in range(3))
        before = scaler._scale
        return type(result).__name__, before, list(result), scaler._scale

    assert_same(run)


def test_scale_of_a_string_is_lazy_and_then_recurses_for_ever():
    assert_same(lambda amp: type(amp.scaler().scale("loss")).__name__)


def test_scale_when_disabled_returns_the_very_object():
    for value in (torch.ones(1), [torch.ones(1)], "loss", {"a": 1}, None, 3):
        assert torchamp.GradScaler("cpu", enabled=False).scale(value) is value


def test_scale_is_differentiable():
    def run(amp):
        leaf = torch.tensor([1.0, 2.0], requires_grad=True)
        amp.scaler(init_scale=4.0).scale((leaf * leaf).sum()).backward()
        return leaf.grad

    assert_same(run)


# --- unscale_ ------------------------------------------------------------------------------------


def with_half_gradients():
    return [torch.full((2,), 8.0), torch.full((2,), 8.0, dtype=torch.half)]


GRADIENTS = {
    "finite": lambda: [torch.tensor([8.0, -16.0, 0.0, -0.0])],
    "inf": lambda: [torch.tensor([8.0, INF]), torch.ones(2)],
    "negative inf": lambda: [torch.ones(2), torch.tensor([-INF])],
    "nan": lambda: [torch.tensor([NAN])],
    "subnormal": lambda: [torch.tensor([1e-45, 1e-40, 3e-39])],
    "some without": lambda: [None, torch.ones(3), None],
    "none": lambda: [None, None],
    "no parameters of size": lambda: [torch.ones(0), torch.ones(2, 0, 3)],
    "transposed": lambda: [torch.arange(6.0).reshape(2, 3).t()],
    "with gaps": lambda: [torch.arange(8.0)[::2], torch.arange(12.0).reshape(3, 4)[:, 1:3]],
    "channels last": lambda: [
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    ],
    "scalar": lambda: [torch.tensor(8.0)],
    "all types": lambda: [
        torch.full((3,), 3.0, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32)
    ],
    "half is refused": with_half_gradients,
    "sparse": lambda: [torch.sparse_coo_tensor([[0, 2]], [[8.0], [16.0]], (3, 1))],
    "sparse with duplicates": lambda: [
        torch.sparse_coo_tensor([[0, 0, 1]], [8.0, 1e38, -8.0], (3,)),
        torch.ones(2),
    ],
    "expanded": lambda: [torch.ones(1).expand(4)],
}


@pytest.mark.parametrize("grads", GRADIENTS.values(), ids=GRADIENTS)
def test_unscale(grads):
    def run(amp):
        scaler, optimizer = scaled(amp, *grads())
        result = outcome(lambda: scaler.unscale_(optimizer))
        return result.error, everything(scaler, optimizer)

    assert_same(run)


@pytest.mark.parametrize("grads", GRADIENTS.values(), ids=GRADIENTS)
def test_step_and_update(grads):
    def run(amp):
        scaler, optimizer = scaled(amp, *grads(), growth_interval=1)
        step = outcome(lambda: scaler.step(optimizer))
        after_step = everything(scaler, optimizer)
        update = outcome(scaler.update)
        return step.error, after_step, update.error, everything(scaler, optimizer)

    assert_same(run)


@pytest.mark.parametrize("scale", [1.0, 3.0, 65536.0, 1e-3, 3.4e38, 2.0**-60])
def test_inverse_is_that_of_stock(scale):
    def run(amp):
        torch.manual_seed(1)
        grads = [torch.rand(33), torch.rand(33).bfloat16(), torch.rand(33).double()]
        scaler, optimizer = scaled(amp, *grads, init_scale=scale)
        scaler.unscale_(optimizer)
        return everything(scaler, optimizer)

    assert_same(run)


@pytest.mark.parametrize("method", ["unscale_", "step", "update"])
def test_before_any_scale(method):
    def run(amp):
        scaler = amp.scaler()
        optimizer = torch.optim.SGD(parameters(torch.ones(2)), lr=1.0)
        getattr(scaler, method)(*([] if method == "update" else [optimizer]))

    assert assert_same(run).error is AssertionError


ILLEGAL = {
    "unscale twice": ["unscale_", "unscale_"],
    "unscale after step": ["step", "unscale_"],
    "step twice": ["step", "step"],
    "update first": ["update"],
    "update twice": ["step", "update", "update"],
    "unscale, update, unscale": ["unscale_", "update", "unscale_"],
}


@pytest.mark.parametrize("calls", ILLEGAL.values(), ids=ILLEGAL)
@pytest.mark.parametrize("fused", [False, True])
def test_order_of_calls(calls, fused):
    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        optimizer = torch.optim.SGD(parameters(torch.ones(2)), lr=0.5, fused=fused)
        errors = [
            outcome(lambda c=call: getattr(scaler, c)(*([] if c == "update" else [optimizer])))
            for call in calls
        ]
        return [error.error for error in errors], everything(scaler, optimizer)

    assert_same(run)


def test_a_parameter_that_is_no_tensor():
    class Odd:
        param_groups = ({"params": [torch.ones(1), "weight"]},)

    def run(amp):
        scaler, _ = scaled(amp, torch.ones(1))
        scaler.unscale_(Odd())

    assert assert_same(run).error is AssertionError


@pytest.mark.parametrize(
    "groups",
    [
        lambda params: ({"params": params},),
        lambda params: [{"params": tuple(params)}],
        lambda params: iter([{"params": iter(params)}]),
        lambda params: [],
        lambda params: [{"params": []}, {"params": params, "lr": 1}],
        lambda params: [{"weights": params}],
    ],
)
def test_an_optimizer_by_duck_typing(groups):
    def run(amp):
        params = parameters(torch.full((2,), 8.0))

        class Duck:
            param_groups = groups(params)

        scaler, _ = scaled(amp, torch.ones(1))
        result = outcome(lambda: scaler.unscale_(Duck()))
        return result.error, params[0].grad, scaler_state(scaler)

    assert_same(run)


def test_no_version_is_bumped_and_no_history_is_made():
    def run(amp):
        scaler, optimizer = scaled(amp, torch.full((2,), 8.0))
        grad = optimizer.param_groups[0]["params"][0].grad
        before = grad._version
        scaler.unscale_(optimizer)
        return grad._version - before, grad.requires_grad, grad.grad_fn

    assert_same(run)


def test_gradients_with_history():
    """As `create_graph=True` makes them."""

    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        leaf = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        optimizer = torch.optim.SGD([leaf], lr=0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scaler.scale((leaf**3).sum()).backward(create_graph=True)
        scaler.step(optimizer)
        scaler.update()
        return leaf, leaf.grad

    assert_same(run)


def test_in_inference_mode():
    def run(amp):
        with torch.inference_mode():
            scaler, optimizer = scaled(amp, torch.full((2,), 8.0))
            scaler.unscale_(optimizer)
            return everything(scaler, optimizer)

    assert_same(run)


# --- step ----------------------------------------------------------------------------------------


class Recording(torch.optim.SGD):
    """Returns its arguments."""

    def step(self, *args, **kwargs):
        return args, sorted(kwargs.items())


@pytest.mark.parametrize("enabled", [True, False])
def test_step_hands_on_arguments_and_result(enabled):
    def run(amp):
        scaler = amp.scaler(enabled=enabled)
        scaler.scale(torch.ones(()))
        optimizer = Recording(parameters(torch.ones(2)), lr=1.0)
        return scaler.step(optimizer, None, 3, mode="fast")

    assert_same(run)


def test_step_returns_none_when_skipped():
    def run(amp):
        scaler = amp.scaler()
        scaler.scale(torch.ones(()))
        return scaler.step(Recording(parameters(torch.tensor([INF])), lr=1.0))

    assert assert_same(run).value is None


@pytest.mark.parametrize("fused", [False, True])
def test_keyword_closure_is_refused(fused):
    def run(amp):
        scaler = amp.scaler()
        optimizer = torch.optim.SGD(parameters(torch.ones(2)), lr=1.0, fused=fused)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer, closure=lambda: 1.0)

    assert assert_same(run).error is RuntimeError


def test_closure_none_is_refused_too():
    def run(amp):
        scaler, optimizer = scaled(amp, torch.ones(2))
        scaler.step(optimizer, closure=None)

    assert assert_same(run).error is RuntimeError


def test_gradients_changed_between_unscale_and_step_are_not_looked_at_again():
    def run(amp):
        scaler, optimizer = scaled(amp, torch.ones(2))
        scaler.unscale_(optimizer)
        optimizer.param_groups[0]["params"][0].grad.fill_(NAN)
        scaler.step(optimizer)
        scaler.update()
        return everything(scaler, optimizer)

    assert_same(run)


def test_gradients_removed_between_unscale_and_step():
    def run(amp):
        scaler, optimizer = scaled(amp, torch.ones(2))
        scaler.unscale_(optimizer)
        optimizer.zero_grad()
        scaler.step(optimizer)
        scaler.update()
        return everything(scaler, optimizer)

    assert_same(run)


def test_param_groups_added_later():
    def run(amp):
        scaler, optimizer = scaled(amp, torch.full((2,), 8.0))
        optimizer.add_param_group({"params": parameters(torch.full((3,), 16.0), None)})
        scaler.step(optimizer)
        scaler.update()
        return everything(scaler, optimizer)

    assert_same(run)


def test_several_optimizers_share_one_update():
    def run(amp):
        scaler, first = scaled(amp, torch.ones(2))
        second = torch.optim.Adam(parameters(torch.tensor([INF, 1.0])), lr=0.1)
        third = torch.optim.SGD(parameters(torch.ones(1)), lr=0.1, fused=True)
        scaler.unscale_(first)
        for optimizer in (first, second, third):
            scaler.step(optimizer)
        before = scaler_state(scaler)
        scaler.update()
        return before, [everything(scaler, optimizer) for optimizer in (first, second, third)]

    assert_same(run)


# --- optimizers that unscale by themselves -------------------------------------------------------


class Scaling(torch.optim.SGD):
    """The protocol of fused optimizers: told by attributes, always called."""

    _step_supports_amp_scaling = True

    def __init__(self, params):
        super().__init__(params, lr=1.0)
        self.seen = []

    def step(self, closure=None):
        self.seen.append(
            [
                None if self.grad_scale is None else float(self.grad_scale),
                float(self.found_inf),
                type(self.found_inf).__name__,
            ]
        )
        return "stepped"


@pytest.mark.parametrize(
    "grads",
    [
        lambda: [torch.ones(2)],
        lambda: [torch.tensor([INF])],
        lambda: [torch.ones(2, dtype=torch.half), torch.tensor([NAN], dtype=torch.half)],
        lambda: [None],
    ],
    ids=["finite", "inf", "half", "none"],
)
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("own_scale", [None, 0.5, torch.tensor(4.0)])
def test_protocol_by_attributes(grads, unscale, own_scale):
    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        optimizer = Scaling(parameters(*grads()))
        scaler.scale(torch.ones(()))
        errors = []
        if unscale:
            errors.append(outcome(lambda: scaler.unscale_(optimizer)).error)
        if own_scale is not None:
            optimizer.grad_scale = own_scale
        result = outcome(lambda: scaler.step(optimizer))
        attributes = hasattr(optimizer, "grad_scale"), hasattr(optimizer, "found_inf")
        before = everything(scaler, optimizer)
        update = outcome(scaler.update)
        return (
            errors,
            result,
            optimizer.seen,
            attributes,
            before,
            update.error,
            everything(scaler, optimizer),
        )

    assert_same(run)


def test_own_scale_of_none_is_as_in_stock():
    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        optimizer = Scaling(parameters(torch.ones(1)))
        scaler.scale(torch.ones(()))
        optimizer.grad_scale = None
        scaler.step(optimizer)

    assert assert_same(run).error is TypeError


def test_protocol_by_argument():
    """Older: the scaler itself is handed in, with a FutureWarning at the user's line."""

    class Old(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure=None, *, grad_scaler=None):
            grad_scaler._check_inf_per_device(self)
            found = sum(flag.item() for flag in grad_scaler._found_inf_per_device(self).values())
            has_attributes = hasattr(self, "grad_scale") or hasattr(self, "found_inf")
            return type(grad_scaler).__name__, found, has_attributes, grad_scaler.get_scale()

    lines = []

    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        optimizer = Old(parameters(torch.tensor([INF, 1.0])), lr=1.0)
        scaler.scale(torch.ones(()))
        with pytest.warns(FutureWarning) as caught:
            result = scaler.step(optimizer)
        lines.append((caught[0].filename, caught[0].lineno))
        scaler.update()
        return result, everything(scaler, optimizer)

    assert_same(run)
    assert lines[0] == lines[1]
    assert lines[0][0] == __file__


def test_protocol_by_argument_wins_over_the_users_own():
    class Old(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, grad_scaler=None):
            return isinstance(grad_scaler, torch.amp.GradScaler)

    def run(amp):
        scaler = amp.scaler()
        scaler.scale(torch.ones(()))
        return scaler.step(Old(parameters(torch.ones(1)), lr=1.0), grad_scaler="mine")

    assert_same(run)


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True),
        lambda params: torch.optim.Adam(params, lr=0.1, fused=True),
        lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
        lambda params: torch.optim.Adagrad(params, lr=0.1, fused=True),
    ],
    ids=["SGD", "Adam", "AdamW", "Adagrad"],
)
@pytest.mark.parametrize("unscale", [False, True])
def test_fused_optimizers(make, unscale):
    def run(amp):
        scaler = amp.scaler(init_scale=8.0, growth_interval=2)
        params = parameters(torch.ones(3), torch.ones(2, 2))
        optimizer = make(params)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for i in range(6):
            optimizer.zero_grad()
            loss = sum((param * param).sum() for param in params) * (INF if i == 3 else 1.0)
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        return everything(scaler, optimizer), optimizer.state_dict()

    assert_same(run)


def test_signature_of_step_is_read_for_each_class_and_instance():
    """The answer is kept by function: another step of the same optimizer is not mixed up."""
    scaler = torchamp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    optimizer = Scaling(parameters(torch.ones(1)))
    scaler.step(optimizer)
    scaler.update()
    handed = []
    optimizer.step = lambda grad_scaler=None: handed.append(grad_scaler)
    with pytest.warns(FutureWarning):
        scaler.step(optimizer)
    assert handed == [scaler]


# --- update --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "new_scale",
    [
        lambda: 4.0,
        lambda: INF,
        lambda: torch.tensor(16.0),
        lambda: torch.tensor(16.0, dtype=torch.float64),
        lambda: torch.tensor(3, dtype=torch.int64),
        lambda: torch.tensor([1.0, 2.0]),
        lambda: torch.tensor(2.0, requires_grad=True),
        lambda: torch.tensor(2.0, device="meta"),
        lambda: "4",
        lambda: [4.0],
    ],
)
def test_update_with_a_new_scale(new_scale):
    def run(amp):
        scaler, optimizer = scaled(amp, torch.tensor([INF]))
        scaler.unscale_(optimizer)
        result = outcome(lambda: scaler.update(new_scale()))
        return result.error, everything(scaler, optimizer)

    assert_same(run)


def test_update_with_a_new_scale_needs_no_inf_checks_and_leaves_the_tracker():
    def run(amp):
        scaler, optimizer = scaled(amp, torch.ones(1))
        scaler.step(optimizer)
        scaler.update()
        scaler.update(2.0)
        return everything(scaler, optimizer)

    assert_same(run)


@pytest.mark.parametrize("interval", [-3, 0, 1, 2, 5, 2**31, 2**40])
@pytest.mark.parametrize("factors", [(2.0, 0.5), (1.5, 0.1), (3, 0.75)])
def test_update_over_many_iterations(interval, factors):
    growth, backoff = factors

    def run(amp):
        options = {"growth_factor": growth, "backoff_factor": backoff, "growth_interval": interval}
        scaler, optimizer = scaled(amp, torch.ones(2), **options)
        grad = optimizer.param_groups[0]["params"][0].grad
        states = []
        for i in range(20):
            grad.fill_(NAN if i % 7 == 6 else 1.0)
            scaler.unscale_(optimizer)
            scaler.update()
            states.append(scaler.state_dict())
        return states

    assert_same(run)


def test_growth_stops_below_infinity():
    def run(amp):
        scaler, optimizer = scaled(amp, torch.ones(2), init_scale=2.0**126, growth_interval=1)
        states = []
        for _ in range(4):
            scaler.unscale_(optimizer)
            scaler.update()
            states.append(scaler.state_dict())
        return states

    assert_same(run)


def test_scale_and_tracker_keep_their_addresses():
    scaler, optimizer = scaled(OURS, torch.ones(2), growth_interval=1)
    addresses = scaler._scale.data_ptr(), scaler._growth_tracker.data_ptr()
    for _ in range(3):
        scaler.unscale_(optimizer)
        scaler.update()
    scaler.update(4.0)
    assert addresses == (scaler._scale.data_ptr(), scaler._growth_tracker.data_ptr())


def test_a_kept_flag_still_tells_after_update():
    def run(amp):
        scaler, optimizer = scaled(amp, torch.tensor([INF]))
        scaler.unscale_(optimizer)
        kept = scaler._found_inf_per_device(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.param_groups[0]["params"][0].grad.fill_(1.0)
        scaler.unscale_(optimizer)
        return kept, scaler._found_inf_per_device(optimizer)

    assert_same(run)


# --- private names -------------------------------------------------------------------------------


def test_assigning_the_scale():
    def run(amp):
        scaler, optimizer = scaled(amp, torch.full((2,), 32.0))
        scaler._scale = torch.tensor(32.0)
        assert scaler.get_scale() == 32.0
        scaler.step(optimizer)
        scaler.update()
        return everything(scaler, optimizer), scaler.scale(torch.ones(1))

    assert_same(run)


ASSIGNED = {
    "shape [1]": ("_scale", lambda: torch.tensor([4.0])),
    "float64": ("_scale", lambda: torch.tensor(4.0, dtype=torch.float64)),
    "a number": ("_scale", lambda: 4.0),
    "None": ("_scale", lambda: None),
    "two elements": ("_scale", lambda: torch.tensor([4.0, 2.0])),
    "meta": ("_scale", lambda: torch.tensor(4.0, device="meta")),
    "parameter": ("_scale", lambda: torch.nn.Parameter(torch.tensor(4.0))),
    "tracker int64": ("_growth_tracker", lambda: torch.tensor(0)),
    "tracker float": ("_growth_tracker", lambda: torch.tensor(0.0)),
    "tracker number": ("_growth_tracker", lambda: 3),
    "tracker None": ("_growth_tracker", lambda: None),
    "tracker": ("_growth_tracker", lambda: torch.tensor([0], dtype=torch.int32)),
    "growth factor tensor": ("_growth_factor", lambda: torch.tensor(3.0)),
    "growth factor int": ("_growth_factor", lambda: 3),
    "backoff": ("_backoff_factor", lambda: 0.25),
    "interval": ("_growth_interval", lambda: 1),
    "enabled": ("_enabled", lambda: False),
    "init": ("_init_scale", lambda: 128.0),
    "states": ("_per_optimizer_states", dict),
}


@pytest.mark.parametrize("assigned", ASSIGNED.values(), ids=ASSIGNED)
@pytest.mark.parametrize("grad", [8.0, INF])
def test_assigning_private_attributes(assigned, grad):
    name, value = assigned

    def run(amp):
        scaler, optimizer = scaled(amp, torch.full((2,), grad), growth_interval=1)
        setattr(scaler, name, value())
        calls = [
            lambda: scaler.get_scale(),
            lambda: scaler.unscale_(optimizer),
            lambda: scaler.step(optimizer),
            lambda: scaler.update(),
            lambda: scaler.state_dict(),
        ]
        results = [outcome(call) for call in calls]
        return [(result.error, result.value) for result in results], everything(scaler, optimizer)

    assert_same(run)


def test_flags_put_in_by_a_third_party():
    """As code does that shares the decision between processes."""

    def run(amp, flags):
        scaler, optimizer = scaled(amp, torch.ones(2))
        scaler.unscale_(optimizer)
        scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = flags()
        results = [outcome(lambda: scaler.step(optimizer)), outcome(scaler.update)]
        return [(result.error, result.value) for result in results], everything(scaler, optimizer)

    cpu = torch.device("cpu")
    for flags in (
        lambda: {cpu: torch.tensor(1.0)},
        lambda: {cpu: torch.tensor([1.0])},
        lambda: {cpu: torch.tensor(NAN)},
        lambda: {"first": torch.tensor(0.0), "second": torch.tensor(0.5)},
        lambda: {cpu: torch.tensor(1.0, dtype=torch.float64)},
        lambda: {cpu: torch.tensor(True)},
        lambda: {cpu: 1.0},
        lambda: {},
    ):
        assert_same(lambda amp, flags=flags: run(amp, flags))


def test_private_methods_by_hand():
    def run(amp):
        scaler, optimizer = scaled(
            amp, torch.full((2,), 8.0), torch.full((1,), INF), torch.ones(1, dtype=torch.half)
        )
        results = {
            "found": scaler._found_inf_per_device(optimizer),
            "checked": scaler._check_inf_per_device(optimizer),
            "async": scaler._get_scale_async(),
            "tracker": scaler._get_growth_tracker(),
            "after checks": everything(scaler, optimizer),
        }
        arguments = torch.tensor(0.5), torch.tensor(0.0)
        results["refused"] = outcome(
            lambda: scaler._unscale_grads_(optimizer, *arguments, False)
        ).error
        results["unscaled"] = scaler._unscale_grads_(optimizer, *arguments, True)
        results["given flag"] = arguments[1]
        results["kept"] = scaler._unscale_grads_(
            optimizer, torch.tensor([1.0]), torch.tensor([3.0]), True
        )
        results["double"] = outcome(
            lambda: scaler._unscale_grads_(
                optimizer, torch.tensor(1.0), torch.tensor(0.0, dtype=torch.float64), True
            )
        ).error
        return results, everything(scaler, optimizer)

    assert_same(run)


def test_before_the_first_scale():
    def run(amp):
        scaler = amp.scaler(init_scale=5.0)
        optimizer = torch.optim.SGD(parameters(torch.ones(1)), lr=1.0)
        return [
            scaler.get_scale(),
            scaler._get_scale_async(),
            scaler._get_growth_tracker(),
            scaler.state_dict(),
            outcome(lambda: scaler._check_inf_per_device(optimizer)).error,
            scaler._found_inf_per_device(optimizer),
            scaler_state(scaler),
        ]

    assert_same(run)


# --- options, state, pickle ----------------------------------------------------------------------


def test_getters_and_setters():
    def run(amp):
        scaler = amp.scaler()
        scaler.set_growth_factor(0.5)
        scaler.set_backoff_factor(7)
        scaler.set_growth_interval(-2)
        return (
            scaler.get_growth_factor(),
            scaler.get_backoff_factor(),
            scaler.get_growth_interval(),
            scaler_state(scaler),
        )

    assert_same(run)


@pytest.mark.parametrize(
    "name",
    [
        "get_scale",
        "get_growth_factor",
        "get_backoff_factor",
        "get_growth_interval",
        "_get_growth_tracker",
        "state_dict",
        "update",
        "is_enabled",
        "_get_scale_async",
    ],
)
def test_disabled(name):
    assert_same(lambda amp: getattr(amp.scaler(enabled=False), name)())


def test_disabled_methods_with_arguments():
    def run(amp):
        scaler = amp.scaler(enabled=False)
        optimizer = torch.optim.SGD(parameters(torch.tensor([INF, 1.0])), lr=1.0)
        scaler.unscale_(optimizer)
        scaler.load_state_dict({})
        scaler.load_state_dict({"scale": 1})
        scaler.set_growth_factor(4.0)
        value = scaler.step(optimizer, lambda: torch.tensor(3.0))
        value = value, scaler.step(optimizer, closure=lambda: torch.tensor(2.0))
        return value, vars(scaler), optimizer.param_groups[0]["params"]

    assert_same(run)


STATE = {
    "scale": 32.0,
    "growth_factor": 3.0,
    "backoff_factor": 0.25,
    "growth_interval": 7,
    "_growth_tracker": 4,
}


@pytest.mark.parametrize(
    "state",
    [STATE, {}, {**STATE, "extra": 1}, {**STATE, "scale": 16}, {"growth_factor": 2.0}],
    ids=["all", "empty", "unknown key", "integer", "first key missing"],
)
@pytest.mark.parametrize("lazy", [True, False])
def test_load_state_dict(state, lazy):
    def run(amp):
        scaler = amp.scaler()
        if not lazy:
            scaler.scale(torch.ones(()))
        result = outcome(lambda: scaler.load_state_dict(dict(state)))
        return result.error, scaler_state(scaler), scaler.state_dict()

    assert_same(run)


@pytest.mark.parametrize(("source", "target"), [(STOCK, OURS), (OURS, STOCK), (OURS, OURS)])
def test_state_travels(source, target):
    sender, optimizer = scaled(source, torch.ones(2), growth_interval=5)
    for _ in range(3):
        sender.unscale_(optimizer)
        sender.update()
    receiver = target.scaler()
    receiver.load_state_dict(sender.state_dict())
    assert receiver.state_dict() == sender.state_dict()
    assert list(receiver.state_dict()) == list(sender.state_dict())
    assert receiver._init_growth_tracker == 3


def copies(scaler):
    yield pickle.loads(pickle.dumps(scaler))
    yield copy.deepcopy(scaler)
    yield copy.copy(scaler)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("when", ["fresh", "scaled", "updated", "in the middle"])
def test_pickle_and_copy(enabled, when):
    def run(amp):
        scaler = amp.scaler(init_scale=4.0, growth_interval=1, enabled=enabled)
        optimizer = torch.optim.SGD(parameters(torch.ones(2)), lr=1.0)
        if when != "fresh":
            scaler.scale(torch.ones(()))
        if when in ("updated", "in the middle"):
            scaler.step(optimizer)
            if when == "updated":
                scaler.update()
        return [(scaler_state(made), made.is_enabled()) for made in copies(scaler)]

    assert_same(run)


def test_a_copy_trains_on_alone():
    def run(amp):
        scaler, optimizer = scaled(amp, torch.ones(2), growth_interval=1)
        scaler.step(optimizer)
        scaler.update()
        made = copy.deepcopy(scaler)
        made.scale(torch.ones(()))
        made.step(optimizer)
        made.update()
        return scaler.state_dict(), made.state_dict(), type(made).__name__

    assert_same(run)


@pytest.mark.parametrize(
    "cls", [torchamp.GradScaler, torchamp.cuda.amp.GradScaler, torchamp.cpu.amp.GradScaler]
)
def test_pickle_finds_the_class(cls):
    made = pickle.loads(pickle.dumps(cls(enabled=False)))
    assert type(made) is cls


def test_torch_save_and_load(tmp_path):
    scaler, optimizer = scaled(OURS, torch.ones(2), growth_interval=4)
    scaler.step(optimizer)
    scaler.update()
    torch.save({"scaler": scaler, "state": scaler.state_dict()}, tmp_path / "all.pt")
    loaded = torch.load(tmp_path / "all.pt", weights_only=False)
    assert loaded["scaler"].state_dict() == loaded["state"] == scaler.state_dict()


def test_default_factory_of_the_states():
    def run(amp):
        scaler = amp.scaler()
        factory = scaler._per_optimizer_states.default_factory
        made = pickle.loads(pickle.dumps(scaler))._per_optimizer_states
        return factory is torch.amp.grad_scaler._refresh_per_optimizer_state, snapshot(
            made[id(made)]["found_inf_per_device"]
        )

    assert_same(run)


def test_autograd_notices_what_was_written_to():
    """A graph that holds the old scale, or gradients from before clipping, is not used silently."""

    def old_scale(amp):
        (param,) = parameters(torch.ones(2))
        optimizer = torch.optim.SGD([param], lr=1.0)
        scaler = amp.scaler(init_scale=4.0, growth_interval=1)
        x = torch.ones(1, requires_grad=True)
        scaled = scaler.scale((x * 5).sum())
        scaler.step(optimizer)
        scaler.update()
        return scaler._scale._version, torch.autograd.grad(scaled, x)

    def old_gradients(amp):
        (param,) = parameters(torch.full((2,), 8.0))
        x = torch.ones(1, requires_grad=True)
        product = (param.grad * x * x).sum()
        torch.nn.utils.clip_grad_norm_([param], 1.0)
        return torch.autograd.grad(product, x)

    assert assert_same(old_scale).error is RuntimeError
    assert outcome(lambda: old_gradients(STOCK)).error is RuntimeError
    (param,) = parameters(torch.full((2,), 8.0))
    scaler = torchamp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    scaler.clip_grad_norm_(torch.optim.SGD([param], lr=1.0), 1.0)
    assert param.grad._version == 1


def test_an_optimizer_may_keep_the_scale_that_it_was_given():
    class Keeping(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure=None):
            kept.append(self.grad_scale)

    kept = []

    def run(amp):
        kept.clear()
        optimizer = Keeping(parameters(torch.ones(2)), lr=1.0)
        scaler = amp.scaler(init_scale=4.0, growth_interval=1)
        for _ in range(3):
            scaler.scale(torch.ones(()))
            scaler.step(optimizer)
            scaler.update()
        return list(kept)

    assert assert_same(run).error is None
