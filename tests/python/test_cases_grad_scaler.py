"""What users of mixed precision ran into, one test a case, named by its number."""

import copy
import pickle
import warnings

import pytest
import torch
import torchamp
from stock_and_ours import OURS, STOCK, assert_same, outcome, parameters, snapshot

INF = float("inf")
NAN = float("nan")


def ones(size=4):
    return torch.nn.Parameter(torch.ones(size))


def run_iterations(scaler, optimizer, param, grads):
    """One iteration for each value of the true gradient; scale and tracker after each."""
    history = []
    for grad in grads:
        scaler.scale(torch.ones(()))
        param.grad = torch.full_like(param, grad) * scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        history.append((scaler.get_scale(), scaler._get_growth_tracker()))
    return history


def test_k1_one_iteration_by_hand():
    param = ones()
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(param.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [0.0] * 4
    assert param.grad.tolist() == [1.0] * 4
    assert scaler.get_scale() == 8.0


def test_k2_growth_and_backoff_over_seven_iterations():
    param = ones()
    scaler = torchamp.GradScaler("cpu", init_scale=1.0, growth_interval=3)
    optimizer = torch.optim.SGD([param], lr=0.1)
    history = run_iterations(scaler, optimizer, param, [1, 1, 1, 1, NAN, 1, 1])
    assert history == [(1, 1), (1, 2), (2, 0), (2, 1), (1, 0), (1, 1), (1, 2)]


def test_k5_a_true_gradient_beyond_float32_is_an_overflow():
    param = ones()
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = torchamp.GradScaler("cpu", init_scale=2.0**-10)
    scaler.scale(torch.ones(()))
    param.grad = torch.full((4,), 1e36)
    scaler.unscale_(optimizer)
    assert [flag.item() for flag in scaler._found_inf_per_device(optimizer).values()] == [1.0]
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [1.0] * 4
    assert scaler.get_scale() == 2.0**-11


def test_k6_growth_never_makes_the_scale_infinite():
    param = ones()
    scaler = torchamp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1)
    optimizer = torch.optim.SGD([param], lr=0.0)
    assert run_iterations(scaler, optimizer, param, [0.5] * 3) == [(2.0**127, 0)] * 3


@pytest.mark.parametrize("lowered_by", ["loading", "setter"])
def test_k8_a_tracker_above_the_interval_grows_at_the_next_update(lowered_by):
    param = ones()
    optimizer = torch.optim.SGD([param], lr=0.0)
    scaler = torchamp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    if lowered_by == "loading":
        state = {**scaler.state_dict(), "_growth_tracker": 7, "growth_interval": 5}
        scaler.load_state_dict(state)
    else:
        run_iterations(scaler, optimizer, param, [1.0] * 7)
        scaler.set_growth_interval(5)
    history = run_iterations(scaler, optimizer, param, [1.0] * 2)
    assert history == [(8.0, 0), (8.0, 1)]


def test_k22_one_of_two_optimizers_overflows():
    first, second = ones(), ones()
    optimizers = [torch.optim.SGD([first], lr=1.0), torch.optim.SGD([second], lr=1.0)]
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    first.grad, second.grad = torch.full((4,), 8.0), torch.tensor([8.0, INF, 8.0, 8.0])
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert first.tolist() == [0.0] * 4
    assert second.tolist() == [1.0] * 4
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize(
    "calls", [("unscale_", "unscale_"), ("step", "unscale_"), ("step", "step")]
)
def test_k24_calls_out_of_order_are_errors_that_say_what_to_do(calls):
    optimizer = torch.optim.SGD(parameters(torch.ones(4)), lr=1.0)
    scaler = torchamp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    getattr(scaler, calls[0])(optimizer)
    with pytest.raises(RuntimeError, match=r"update\(\)"):
        getattr(scaler, calls[1])(optimizer)


def fail_once(optimizer):
    """Let its next step, and only that, raise."""
    failures = [torch.OutOfMemoryError()]

    def hook(*_):
        if failures:
            raise failures.pop()

    optimizer.register_step_pre_hook(hook)


def test_k26_after_an_exception_in_the_optimizer_training_goes_on():
    class OutOfMemoryOnce(torch.optim.SGD):
        failed = False

        def step(self, closure=None):
            if not self.failed:
                self.failed = True
                raise torch.OutOfMemoryError
            return super().step(closure)

    param = ones()
    optimizer = OutOfMemoryOnce([param], lr=1.0)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(param.sum()).backward()
    with pytest.raises(torch.OutOfMemoryError):
        scaler.step(optimizer)
    optimizer.zero_grad()
    scaler.scale(param.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [0.0] * 4


@pytest.mark.parametrize("next_call", ["unscale_", "clip_grad_norm_", "step"])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_k26_after_an_exception_in_a_fused_optimizer_training_goes_on(make, next_call):
    param = ones()
    optimizer = make([param], lr=1.0, fused=True)
    scaler = torchamp.GradScaler("cpu", init_scale=1024.0)
    fail_once(optimizer)
    scaler.scale(param.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(torch.OutOfMemoryError):
        scaler.step(optimizer)
    optimizer.zero_grad()
    scaler.scale(param.sum()).backward()
    if next_call == "clip_grad_norm_":
        assert float(scaler.clip_grad_norm_(optimizer, 1e6)) == pytest.approx(2.0)
    elif next_call == "unscale_":
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == pytest.approx([0.0] * 4, abs=1e-6)
    assert param.grad.tolist() == [1.0] * 4


def test_k26_a_retry_that_worked_is_not_forgotten():
    param = ones()
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    fail_once(optimizer)
    scaler.scale(param.sum()).backward()
    with pytest.raises(torch.OutOfMemoryError):
        scaler.step(optimizer)
    scaler.step(optimizer)
    scaler.scale(param.sum())
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [0.0] * 4


@pytest.mark.parametrize("by", ["position", "keyword"])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.LBFGS])
def test_k30_closures_are_refused(by, make):
    param = ones()
    optimizer = make([param], lr=0.1)
    scaler = torchamp.GradScaler("cpu", init_scale=1024.0)

    def closure():
        optimizer.zero_grad()
        loss = (param * param).sum()
        scaler.scale(loss).backward()
        return loss

    closure()
    arguments = ([closure], {}) if by == "position" else ([], {"closure": closure})
    with pytest.raises(RuntimeError, match="Closure"):
        scaler.step(optimizer, *arguments[0], **arguments[1])
    assert param.tolist() == [1.0] * 4


def test_k33_bfloat16_gradients():
    param = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    param.grad = torch.full((4,), 8.0, dtype=torch.bfloat16)
    scaler.step(optimizer)
    scaler.update()
    assert param.grad.tolist() == [1.0] * 4
    assert param.tolist() == [0.0] * 4
    param.grad = torch.tensor([8.0, INF, 1.0, 1.0], dtype=torch.bfloat16)
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [0.0] * 4
    assert scaler.get_scale() == 4.0


def test_k34_a_disabled_scaler_does_nothing():
    param = ones()
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = torchamp.GradScaler("cpu", enabled=False)
    loss = param.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimizer)
    assert scaler.step(optimizer, lambda: 5.0) == 5.0
    scaler.update()
    scaler.update(4.0)
    assert param.tolist() == [0.0] * 4
    assert scaler.state_dict() == {}
    assert scaler.get_scale() == 1.0


@pytest.fixture
def without_cuda(monkeypatch):
    """What a machine without CUDA sees, on any machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def scaler_without_cuda(kind=torchamp.GradScaler, **options):
    with pytest.warns(UserWarning, match="CUDA is not available") as caught:
        scaler = kind(**options)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert not scaler.is_enabled()
    return scaler


KINDS = [torchamp.GradScaler, torchamp.cuda.amp.GradScaler]
SAVINGS = {"state_dict": lambda scaler: scaler.state_dict(), "pickle": pickle.dumps}


def test_k35_a_cuda_scaler_without_cuda_is_disabled_with_a_warning(without_cuda):
    """As stock. Its empty state dict is refused where one is needed."""
    scaler = scaler_without_cuda()
    with pytest.warns(UserWarning, match="not available"):
        state = scaler.state_dict()
    assert state == {}
    with pytest.raises(RuntimeError, match="disabled"):
        torchamp.GradScaler("cpu").load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("save", SAVINGS.values(), ids=SAVINGS)
def test_k35_saving_a_scaler_that_misses_its_device_warns_once(without_cuda, kind, save):
    scaler = scaler_without_cuda(kind)
    with pytest.warns(UserWarning, match=r"empty.*enabled=False.*require_device=True") as caught:
        save(scaler)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for again in SAVINGS.values():
            again(scaler)


def test_k35_a_copy_that_was_loaded_still_warns(without_cuda):
    scaler = scaler_without_cuda()
    with pytest.warns(UserWarning, match="empty"):
        copied = pickle.loads(pickle.dumps(scaler))
    assert not copied.is_enabled()
    with pytest.warns(UserWarning, match="empty"):
        assert copied.state_dict() == {}


@pytest.mark.parametrize("save", SAVINGS.values(), ids=SAVINGS)
@pytest.mark.parametrize("options", [{"device": "cuda"}, {"device": "cpu"}])
def test_k35_a_scaler_that_the_user_disabled_is_saved_silently(without_cuda, save, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(torchamp.GradScaler(**options, enabled=False))
        save(torchamp.GradScaler("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_k35_an_error_where_the_device_is_required(without_cuda, kind):
    with pytest.raises(RuntimeError, match=r"cuda.*not available.*require_device"):
        kind(require_device=True)
    assert not kind(enabled=False, require_device=True).is_enabled()


@pytest.mark.parametrize("device", ["cuda:0", torch.device("cuda"), "xpu"])
def test_k35_any_spelling_of_a_required_device(without_cuda, monkeypatch, device):
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="require_device"):
        torchamp.GradScaler(device, require_device=True)


def test_k35_a_required_device_that_is_there(monkeypatch):
    assert torchamp.GradScaler("cpu", require_device=True).is_enabled()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torchamp.GradScaler(require_device=True).is_enabled()


@pytest.mark.parametrize("unscale_first", [False, True])
def test_k36_unscale_and_clip(unscale_first):
    norms, grads = [], []
    for fused in (False, True):
        optimizer = torch.optim.SGD(
            parameters(torch.tensor([24.0, 0.0]), torch.tensor([32.0])), lr=1
        )
        scaler = torchamp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(torch.ones(()))
        params = optimizer.param_groups[0]["params"]
        if unscale_first or not fused:
            scaler.unscale_(optimizer)
        if fused:
            norms.append(scaler.clip_grad_norm_(optimizer, 1.0))
        else:
            norms.append(torch.nn.utils.clip_grad_norm_(params, 1.0))
        grads.append(torch.cat([param.grad for param in params]))
    assert norms[1].item() == pytest.approx(5.0, rel=1e-6)
    torch.testing.assert_close(grads[1], torch.tensor([0.6, 0.0, 0.8]), rtol=1e-6, atol=0)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-6, atol=0)


def test_k37_clipping_after_an_overflow():
    param = ones()
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    param.grad = torch.tensor([8.0, INF, 16.0, 24.0])
    scaler.clip_grad_norm_(optimizer, 1.0)
    assert [flag.item() for flag in scaler._found_inf_per_device(optimizer).values()] == [1.0]
    assert param.grad[1].isinf()
    assert param.grad[[0, 2, 3]].isfinite().all()
    assert (param.grad[[0, 2, 3]] != 0).all()
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [1.0] * 4
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize("place", ["first", "middle", "last", "alone", "all"])
def test_k41_tensors_without_elements(place):
    def run(amp):
        filled = [torch.full((3,), 8.0), torch.tensor([INF, 8.0]), torch.full((2, 2), 16.0)]
        nothing = [torch.ones(0), torch.ones(4, 0)]
        grads = {
            "first": nothing + filled,
            "middle": filled[:1] + nothing + filled[1:],
            "last": filled + nothing,
            "alone": nothing,
            "all": nothing[:1] + filled[:1] + nothing[1:],
        }[place]
        optimizer = torch.optim.SGD(parameters(*grads), lr=1.0)
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        flags = list(scaler._found_inf_per_device(optimizer).values())
        scaler.update()
        return grads, flags, scaler.state_dict()

    assert_same(run)


def test_k45_strided_gradients_keep_strides_and_neighbours():
    def run(amp):
        transposed = torch.arange(12.0).reshape(3, 4).t()
        channels_last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        base = torch.arange(40.0).reshape(5, 8)
        sliced = base[1:4, ::3]
        grads = [transposed, channels_last, sliced]
        optimizer = torch.optim.SGD(parameters(*grads), lr=1.0)
        scaler = amp.scaler(init_scale=3.0)
        scaler.scale(torch.ones(()))
        scaler.unscale_(optimizer)
        params = optimizer.param_groups[0]["params"]
        return grads, base, [param.grad.stride() for param in params]

    result = assert_same(run)
    assert result.value[3] == [
        "list",
        snapshot((1, 4)),
        snapshot((60, 1, 15, 3)),
        snapshot((8, 3)),
    ]


@pytest.mark.parametrize("bad", [None, 0, 1, 2])
def test_k47_mixed_types_in_one_optimizer(bad):
    def run(amp):
        dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32]
        grads = [torch.full((3,), 24.0, dtype=dtype) for dtype in dtypes]
        if bad is not None:
            grads[bad][1] = INF
        optimizer = torch.optim.SGD(parameters(*grads), lr=1.0)
        scaler = amp.scaler(init_scale=8.0)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        flags = list(scaler._found_inf_per_device(optimizer).values())
        return grads, flags, optimizer.param_groups[0]["params"]

    result = assert_same(run)
    assert len(result.value[2]) == 2  # one flag


def test_k47_half_gradients_too_where_they_are_allowed():
    def run(amp):
        class AllowHalf(amp.amp.GradScaler):
            def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
                return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)

        dtypes = [torch.float32, torch.half, torch.float64, torch.bfloat16]
        grads = [torch.full((3,), 24.0, dtype=dtype) for dtype in dtypes]
        optimizer = torch.optim.SGD(parameters(*grads), lr=1.0)
        scaler = AllowHalf("cpu", init_scale=8.0)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        return grads, optimizer.param_groups[0]["params"]

    assert_same(run)


def test_k52_state_goes_from_stock_to_ours_and_back():
    param = ones()
    optimizer = torch.optim.SGD([param], lr=0.1)
    stock = torch.amp.GradScaler("cpu", init_scale=32.0, growth_interval=9)
    run_iterations(stock, optimizer, param, [1.0, INF, 1.0, 1.0])
    ours = torchamp.GradScaler("cpu")
    ours.load_state_dict(stock.state_dict())
    assert ours.state_dict() == stock.state_dict()
    assert list(ours.state_dict()) == [
        "scale",
        "growth_factor",
        "backoff_factor",
        "growth_interval",
        "_growth_tracker",
    ]
    again = torch.amp.GradScaler("cpu")
    again.load_state_dict(ours.state_dict())
    grads = [1.0] * 10
    histories = [run_iterations(scaler, optimizer, param, grads) for scaler in (stock, ours, again)]
    assert histories[0] == histories[1] == histories[2]


def test_k54_ten_iterations_or_five_and_five(tmp_path):
    def train(model, optimizer, scaler, steps):
        for step in steps:
            optimizer.zero_grad()
            data = torch.full((2, 3), float(step + 1))
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(data).float().pow(2).mean()
            loss = loss * (INF if step == 3 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    def make():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    scaler = torchamp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    model, optimizer = make()
    train(model, optimizer, scaler, range(10))
    whole = snapshot([list(model.parameters()), scaler.state_dict()])

    scaler = torchamp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    model, optimizer = make()
    train(model, optimizer, scaler, range(5))
    torch.save(
        [model.state_dict(), optimizer.state_dict(), scaler.state_dict()], tmp_path / "half.pt"
    )
    model, optimizer = make()
    scaler = torchamp.GradScaler("cpu")
    states = torch.load(tmp_path / "half.pt", weights_only=True)
    for restored, state in zip((model, optimizer, scaler), states, strict=True):
        restored.load_state_dict(state)
    train(model, optimizer, scaler, range(5, 10))
    assert snapshot([list(model.parameters()), scaler.state_dict()]) == whole


OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
    "AdamW fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("clip", [False, True])
def test_k75_a_hundred_steps_as_with_stock(make, clip):
    def run(amp):
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
        )
        optimizer = make(model.parameters())
        scaler = amp.scaler(init_scale=2.0**12, growth_interval=7)
        for step in range(100):
            for _ in range(2):  # accumulation
                with amp.amp.autocast("cpu", dtype=torch.float16):
                    loss = model(torch.randn(4, 6)).float().pow(2).mean() / 2
                scaler.scale(loss * (INF if step == 40 else 1.0)).backward()
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return list(model.parameters()), scaler.state_dict(), optimizer.state_dict()["state"]

    result = assert_same(run)
    assert result.error is None


def test_k76_a_framework_reaches_into_the_scaler():
    """What Accelerate and Lightning do: patch the step, compare scales, read private names."""

    def run(amp):
        scaler = amp.scaler(init_scale=8.0)
        param = ones()
        optimizer = torch.optim.SGD([param], lr=1.0)
        stepped = []
        original = optimizer.step

        def patched(*args, **kwargs):
            stepped.append(True)
            return original(*args, **kwargs)

        skipped = []
        for grad in (8.0, INF, 4.0):
            scaler.scale(torch.ones(()))
            param.grad = torch.full((4,), grad)
            before = scaler.get_scale()
            optimizer.step = patched
            scaler.step(optimizer)
            optimizer.step = original
            found = [flag.item() for flag in scaler._found_inf_per_device(optimizer).values()]
            states = len(scaler._per_optimizer_states)
            scaler.update()
            skipped.append((scaler.get_scale() < before, found, states, float(scaler._scale)))
        assert scaler.is_enabled()
        return stepped, skipped, scaler._get_scale_async(), copy.deepcopy(scaler).get_scale()

    assert_same(run)


@pytest.mark.parametrize(("inside", "initialized"), [(True, True), (True, False), (False, True)])
def test_k79_the_scaler_and_the_operator_under_compile(inside, initialized):
    """`scale` inside a compiled function, and our operator: no graph break, the right state."""
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    if not inside or initialized:
        scaler.scale(torch.ones(()))

    def operator(grad, found_inf, scale):
        torch.ops.torchamp.unscale_([grad], found_inf, scale)
        return grad + 1

    def loss(x):
        return scaler.scale((x * x).sum())

    if inside:
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        compiled(x).backward()
        assert x.grad.tolist() == [16.0, 32.0]
    else:
        compiled = torch.compile(operator, backend="aot_eager", fullgraph=True)
        for value, flag in ((16.0, 0.0), (INF, 1.0)):
            grad, found_inf = torch.full((2,), value), torch.zeros(())
            result = compiled(grad, found_inf, scaler._scale)
            assert result.tolist() == [value / 8 + 1] * 2
            assert grad.tolist() == [value / 8] * 2
            assert found_inf.item() == flag


def test_k79_scale_of_a_list_and_with_updates_between_calls():
    scaler = torchamp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    scaler.scale(torch.ones(()))
    optimizer = torch.optim.SGD(parameters(torch.ones(1)), lr=0.0)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda a, b: scaler.scale([a, (b,)]), backend=backend, fullgraph=True)
    seen = []
    for _ in range(4):
        first, (second,) = compiled(torch.ones(1), torch.full((2,), 2.0))
        seen.append((first.item(), second[0].item()))
        scaler.unscale_(optimizer)
        scaler.update()
    assert seen == [(8.0, 16.0), (16.0, 32.0), (32.0, 64.0), (64.0, 128.0)]
    assert len(graphs) == 1


def test_no_case_warns_without_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outcome(lambda: OURS.scaler()).warned == outcome(lambda: STOCK.scaler()).warned == []
