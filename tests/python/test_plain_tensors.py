"""The fast path takes plain strided tensors only; all others get what stock gives them."""

import typing

import pytest
import torch
import torchamp
from stock_and_ours import assert_same, outcome, parameters, scaler_state, snapshot
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchamp import _C

INF = float("inf")


def optimizer_with(*grads):
    """An optimizer, by duck typing, of parameters that take any gradient."""

    class Optimizer:
        _step_supports_amp_scaling = False

        def step(self):
            return "stepped"

    optimizer = Optimizer()
    params = []
    for grad in grads:
        param = (
            torch.empty_like(grad, requires_grad=False) if grad.layout is torch.strided else None
        )
        if param is None:
            param = torch.zeros(grad.shape, dtype=grad.dtype)
        param.grad = grad
        params.append(param)
    optimizer.param_groups = [{"params": params}]
    return optimizer


def took_the_fast_path(*grads):
    optimizer = optimizer_with(*grads)
    return _C.unscale_gradients(optimizer.param_groups, torch.tensor(8.0)) is not None


def whole_iteration(amp, make):
    scaler = amp.scaler(init_scale=8.0)
    scaler.scale(torch.ones(()))
    grads = make()
    optimizer = optimizer_with(*grads)
    calls = [
        lambda: scaler.unscale_(optimizer),
        lambda: scaler.step(optimizer),
        lambda: scaler.update(),
    ]
    results = [(result.error, result.value) for result in map(outcome, calls)]
    return results, [param.grad for param in optimizer.param_groups[0]["params"]], scaler


def csr(values, dtype=torch.float32):
    return torch.sparse_csr_tensor([0, 1, 2], [0, 1], torch.tensor(values, dtype=dtype), (2, 2))


def coo(values, dtype=torch.float32):
    indices = [[i // 2 for i in range(len(values))]]
    return torch.sparse_coo_tensor(indices, torch.tensor(values, dtype=dtype), (4,))


STRANGE = {
    "sparse COO": lambda: [coo([8.0, 16.0]), torch.full((2,), 8.0)],
    "sparse COO with inf": lambda: [coo([8.0, INF])],
    "sparse COO uncoalesced": lambda: [coo([8.0, 1e38, 3.0, 3e38])],
    "sparse COO without values": lambda: [coo([])],
    "sparse COO float64": lambda: [coo([8.0, 16.0], torch.float64)],
    "sparse COO bfloat16": lambda: [coo([8.0, 16.0], torch.bfloat16)],
    "sparse COO half": lambda: [coo([8.0, 16.0], torch.half)],
    "sparse CSR": lambda: [csr([8.0, 16.0])],
    "sparse CSR after a dense one": lambda: [torch.full((2,), 8.0), csr([8.0, 16.0])],
    "float8": lambda: [torch.ones(2).to(torch.float8_e4m3fn)],
    "float8 e5m2": lambda: [torch.ones(2).to(torch.float8_e5m2)],
    "integer": lambda: [torch.full((2,), 8)],
    "bool": lambda: [torch.tensor([True])],
    "quantized": lambda: [torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)],
    "negative view": lambda: [torch._neg_view(torch.full((2,), 8.0))],
    "negative view of inf": lambda: [torch._neg_view(torch.full((2,), INF))],
    "imaginary part of a conjugate": lambda: [torch.tensor([8 + 16j]).conj().imag],
    "meta": lambda: [torch.ones(2, device="meta")],
    "meta and dense": lambda: [torch.full((2,), 8.0), torch.ones(2, device="meta")],
}


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
def test_result_of_stock(make):
    def run(amp):
        results, grads, scaler = whole_iteration(amp, make)
        shown = [
            str(grad) if grad.is_quantized or grad.is_meta else grad
            for grad in grads
            if grad.dtype.itemsize > 1 or grad.is_quantized or grad.is_meta
        ]
        state = scaler_state_of(scaler)
        return results, shown, state

    assert_same(run)


def scaler_state_of(scaler):
    """The state, with flags on the meta device by their place only."""
    for entry in scaler._per_optimizer_states.values():
        entry["found_inf_per_device"] = {
            device: "meta" if flag.is_meta else flag
            for device, flag in entry["found_inf_per_device"].items()
        }
    return scaler_state(scaler)


@pytest.mark.parametrize("make", [STRANGE[name] for name in STRANGE if "conj" not in name])
def test_nothing_strange_takes_the_fast_path_or_it_raises(make):
    try:
        took = took_the_fast_path(*make())
    except (NotImplementedError, RuntimeError):
        took = False
    assert not took


def test_conjugate_view():
    """Stock refuses it, as any complex gradient; only without the bit is it ours to take."""
    grad = torch.tensor([8 + 16j]).conj()
    assert grad.is_conj()
    assert not took_the_fast_path(grad)
    assert_same(lambda amp: whole_iteration(amp, lambda: [torch.tensor([8 + 16j]).conj()])[:2])


@pytest.mark.parametrize("kind", ["fake mode on", "fake gradients only"])
def test_fake_tensors(kind):
    def run(amp):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            grads = [torch.ones(3), torch.ones(2, 2)]
        scaler = amp.scaler(init_scale=8.0)
        if kind == "fake mode on":
            with mode:
                scaler.scale(torch.ones(()))
                optimizer = optimizer_with(*grads)
                result = outcome(lambda: scaler.unscale_(optimizer))
        else:
            scaler.scale(torch.ones(()))
            optimizer = optimizer_with(*grads)
            result = outcome(lambda: scaler.unscale_(optimizer))
        flags = scaler._found_inf_per_device(optimizer)
        kinds = {str(device): type(flag).__name__ for device, flag in flags.items()}
        return result.error, kinds, [type(grad).__name__ for grad in grads]

    assert_same(run)


def test_fake_scale_with_real_gradients_writes_nothing():
    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        with FakeTensorMode():
            scaler.scale(torch.ones(()))
        grad = torch.full((2,), 8.0)
        result = outcome(lambda: scaler.unscale_(optimizer_with(grad)))
        return result.error, grad

    assert_same(run)


def test_real_gradients_under_a_fake_mode_are_not_written():
    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        grad = torch.full((2,), 8.0)
        optimizer = optimizer_with(grad)
        with FakeTensorMode():
            result = outcome(lambda: scaler.unscale_(optimizer))
        return result.error, grad

    assert_same(run)


class CountOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class CountFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [CountOperators, CountFunctions])
def test_a_mode_sees_stocks_operators(mode):
    name = "_amp_foreach_non_finite_check_and_unscale_"

    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        grads = [torch.full((2,), 8.0), torch.ones(3)]
        optimizer = optimizer_with(*grads)
        with mode() as active:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        seen = [function for function in active.seen if "_amp_" in function]
        return seen, grads, scaler_state(scaler)

    seen = assert_same(run).value[1]
    assert any(name in function for function in seen[1:])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_default_device_neither_changes_nor_slows_anything(device):
    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones((), device="cpu"))
        grads = [torch.full((2,), 8.0, device="cpu")]
        optimizer = optimizer_with(*grads)
        with torch.device(device):
            if amp.name == "torchamp":
                assert _C.unscale_gradients([{"params": []}], scaler._scale) is not None
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return grads, scaler_state(scaler)

    assert_same(run)


class Tagged(torch.Tensor):
    """A subclass that watches functions."""

    seen: typing.ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_with_torch_function():
    def run(amp):
        Tagged.seen = []
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        grad = torch.full((2,), 8.0).as_subclass(Tagged)
        plain = torch.full((2,), 8.0)
        optimizer = optimizer_with(plain, grad)
        scaler.unscale_(optimizer)
        watched = [name for name in Tagged.seen if "_amp_" in name]
        return watched, grad.as_subclass(torch.Tensor), plain, type(grad).__name__

    assert assert_same(run).value[1] != ["list"]


def test_a_wrapper_subclass():
    """A tensor of two tensors, without memory of its own."""

    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        inner = torch.full((2,), 8.0), torch.full((2,), 16.0)
        param = torch.nn.Parameter(TwoTensor(torch.ones(2), torch.ones(2)))
        param.grad = TwoTensor(*inner)
        optimizer = torch.optim.SGD([param], lr=1.0)
        result = outcome(lambda: scaler.unscale_(optimizer))
        return result.error, inner

    assert_same(run)


def test_functorch_wrappers():
    def run(amp, transform):
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        errors = []

        def function(x):
            grad = x * 1.0
            result = outcome(
                lambda: scaler._unscale_grads_(
                    optimizer_with(grad), torch.tensor(0.5), torch.tensor(0.0), False
                )
            )
            errors.append(result.error)
            return (grad * 1.0).sum()

        transform(function)(torch.full((3, 2), 8.0))
        return errors

    for transform in (torch.func.vmap, torch.func.grad, lambda f: f):
        assert_same(lambda amp, transform=transform: run(amp, transform))


def test_real_gradients_inside_a_functorch_transform():
    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        grads = [torch.full((2,), 8.0)]
        optimizer = optimizer_with(*grads)
        errors = []

        def function(x):
            errors.append(outcome(lambda: scaler.unscale_(optimizer)).error)
            return x

        torch.func.vmap(function)(torch.ones(3))
        return errors, grads

    assert_same(run)


def test_freed_storage_is_never_read():
    """As sharded training frees it; a look at the address would be a crash."""
    grad = torch.ones(4)
    optimizer = optimizer_with(grad)
    grad.untyped_storage().resize_(0)
    assert _C.unscale_gradients(optimizer.param_groups, torch.tensor(8.0)) is None


def test_one_strange_gradient_sends_the_whole_list_to_stock():
    grads = [torch.full((2,), 8.0), coo([8.0])]
    assert not took_the_fast_path(*grads)
    assert took_the_fast_path(grads[0])


def test_nothing_was_changed_when_the_fast_path_is_refused():
    grads = [torch.full((2,), 8.0), torch.full((2,), 8.0), coo([8.0])]
    optimizer = optimizer_with(*grads)
    assert _C.unscale_gradients(optimizer.param_groups, torch.tensor(8.0)) is None
    assert snapshot(grads[:2]) == snapshot([torch.full((2,), 8.0)] * 2)


def test_sparse_gradients_of_an_embedding():
    def run(amp):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(5, 3, sparse=True)
        optimizer = torch.optim.SGD(embedding.parameters(), lr=0.5)
        scaler = amp.scaler(init_scale=8.0, growth_interval=2)
        for i in range(5):
            optimizer.zero_grad()
            loss = embedding(torch.tensor([0, 2, 2])).pow(2).sum()
            scaler.scale(loss * (INF if i == 2 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        return embedding.weight, scaler_state(scaler)

    assert_same(run)


def test_half_sparse_duplicates_that_overflow_when_added():
    """Stock replaces such a gradient by its coalesced form. (An override has to allow half.)"""

    def run(amp):
        class Half(amp.amp.GradScaler):
            def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
                return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)

        scaler = Half("cpu", init_scale=2.0)
        scaler.scale(torch.ones(()))
        grad = torch.sparse_coo_tensor(
            [[0, 0, 1]], torch.tensor([60000.0, 60000.0, 2.0], dtype=torch.half), (3,)
        )
        optimizer = torch.optim.SGD(parameters(torch.ones(3, dtype=torch.half)), lr=1.0)
        optimizer.param_groups[0]["params"][0].grad = grad
        result = outcome(lambda: scaler.step(optimizer))
        scaler.update()
        return result.error, optimizer.param_groups[0]["params"][0].grad, scaler.state_dict()

    assert_same(run)


class Marked(torch.nn.Parameter):
    pass


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("scale", [0.0, 1e-40])
def test_a_collapsed_scale_skips_beside_a_tensor_that_is_not_plain(scale, fused):
    params = [*parameters(torch.ones(2)), Marked(torch.ones(2))]
    params[1].grad = torch.ones(2)
    optimizer = torch.optim.SGD(params, lr=1.0, fused=fused)
    assert _C.unscale_gradients(optimizer.param_groups, torch.tensor(8.0)) is None
    before = [param.tolist() for param in params]
    scaler = torchamp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.update(scale)
    scaler.step(optimizer)
    assert [param.tolist() for param in params] == before
    scaler.update()
    assert scaler.get_scale() == torch.tensor(scale / 2).item()
