"""torchamp.autocast beside torch.autocast: construction, running, cache, threads."""

from __future__ import annotations

import copy
import os
import pickle
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torchamp
from stock_and_ours import OURS, STOCK, Implementation, assert_same, run_both
from torch.utils._python_dispatch import TorchDispatchMode

BOTH = pytest.mark.parametrize("implementation", [STOCK, OURS], ids=lambda i: i.name)
DEVICES = ("cpu", "cuda", "mps", "xpu")
HALF_TYPES = (torch.bfloat16, torch.float16)


def settings() -> dict[str, Any]:
    """All autocast settings of this thread, nesting depth included."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    devices = {
        device: (torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device)))
        for device in DEVICES
    }
    return {**devices, "cache": torch.is_autocast_cache_enabled(), "depth": depth}


def set_depth(depth: int) -> None:
    while torch.autocast_increment_nesting() <= depth:
        pass
    while torch.autocast_decrement_nesting() > depth:
        pass


@pytest.fixture(autouse=True)
def settings_are_restored() -> Iterator[None]:
    before = settings()
    yield
    after = settings()
    for device in DEVICES:
        torch.set_autocast_enabled(device, before[device][0])
        torch.set_autocast_dtype(device, getattr(torch, before[device][1].removeprefix("torch.")))
    torch.set_autocast_cache_enabled(before["cache"])
    set_depth(before["depth"])
    torch.clear_autocast_cache()
    assert after == before


def attributes(region: torch.amp.autocast) -> dict[str, Any]:
    return {name: str(value) for name, value in vars(region).items()}


class CountCasts(TorchDispatchMode):
    """Counts the copies to another dtype that reach the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default:
            self.count += 1
        return func(*args, **(kwargs or {}))


# --- construction ---
CONSTRUCTIONS = {
    "cpu": ("cpu",),
    "cpu with an index": ("cpu:0",),
    "float16": ("cpu", torch.float16),
    "all arguments": ("cpu", torch.float16, False, False),
    "cuda": ("cuda",),
    "cuda, bfloat16": ("cuda", torch.bfloat16),
    "cuda, float32": ("cuda", torch.float32),
    "cuda, disabled": ("cuda", None, False),
    "float32": ("cpu", torch.float32),
    "float64, disabled": ("cpu", torch.float64, False),
    "mps": ("mps",),
    "mps, float32": ("mps", torch.float32),
    "xla": ("xla", torch.bfloat16),
    "a device": (torch.device("cpu"),),
    "None": (None,),
    "unknown word": ("dummy",),
    "unknown words": ("my device",),
    "empty": ("",),
    "unsupported": ("meta",),
    "unsupported, with a dtype": ("meta", torch.bfloat16),
    "vulkan": ("vulkan",),
    "privateuseone": ("privateuseone",),
    "cache_enabled": ("cpu", None, True, False),
}


@pytest.mark.parametrize("arguments", CONSTRUCTIONS.values(), ids=CONSTRUCTIONS)
def test_construction_as_stock(arguments):
    assert_same(lambda amp: attributes(amp.amp.autocast(*arguments)))


@pytest.mark.parametrize("arguments", CONSTRUCTIONS.values(), ids=CONSTRUCTIONS)
def test_error_and_warning_texts_as_stock(arguments):
    texts = []
    for amp in (STOCK, OURS):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            error = None
            try:
                amp.amp.autocast(*arguments)
            except Exception as raised:
                error = str(raised).splitlines()[0]
        texts.append((error, [(str(w.message), w.filename) for w in caught]))
    assert texts[0] == texts[1]
    assert all(filename == __file__ for _, filename in texts[1][1]), "points elsewhere"


def test_defaults_are_read_at_construction():
    def program(amp: Implementation) -> Any:
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.set_autocast_cache_enabled(False)
        region = amp.amp.autocast("cpu")
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.set_autocast_cache_enabled(True)
        with region:
            return settings()

    assert_same(program)


@pytest.mark.parametrize("value", [1, None, "yes", torch.tensor(True)], ids=repr)
@pytest.mark.parametrize("name", ["enabled", "cache_enabled"])
def test_flags_of_another_type_as_stock(name, value):
    def program(amp: Implementation) -> Any:
        try:
            with amp.amp.autocast("cpu", **{name: value}):
                return settings()
        finally:
            torch.set_autocast_enabled("cpu", False)  # stock has set it before it finds out
            set_depth(0)

    stock, ours = run_both(program)
    assert (stock.value, stock.error) == (ours.value, ours.error)


# --- running ---
def test_attributes_after_enter_as_stock():
    def program(amp: Implementation) -> Any:
        outer = amp.amp.autocast("cpu", torch.float16, cache_enabled=False)
        inner = amp.amp.autocast("cpu", torch.bfloat16, enabled=False)
        with outer, inner as entered:
            assert entered is inner
            during = [attributes(outer), attributes(inner)]
        return [during, attributes(outer), attributes(inner)]

    assert_same(program)


class _Stop(Exception):
    pass


def _random_regions(amp: Implementation, seed: int) -> list[Any]:
    """Nested regions, some left by an exception, with the settings seen at each point."""
    choice = random.Random(seed)
    trace: list[Any] = []
    weight = torch.nn.Parameter(torch.ones(2, 2))

    def look() -> None:
        product = weight @ torch.ones(2, 2)
        trace.append([settings(), str(product.dtype), str(torch.ones(2, 2).softmax(0).dtype)])

    def level(depth: int) -> None:
        for _ in range(choice.randint(1, 3)):
            look()
            if depth == 4 or choice.random() < 0.3:
                continue
            region = amp.amp.autocast(
                choice.choice(("cpu", "cpu", "mps", "xpu")),
                torch.bfloat16,  # other dtypes inside: a difference by design, tested below
                choice.random() < 0.7,
                choice.choice((True, False, None)),
            )
            try:
                with region:
                    level(depth + 1)
                    if choice.random() < 0.2:
                        raise _Stop
            except _Stop:
                trace.append("stopped")
            look()

    level(0)
    return trace


@pytest.mark.parametrize("seed", range(40))
def test_random_nested_regions_as_stock(seed):
    ours = assert_same(lambda amp: _random_regions(amp, seed))
    assert ours.error is None


@BOTH
def test_k61_an_exception_restores_every_setting(implementation):
    before = settings()
    seen = []
    try:
        with implementation.amp.autocast("cpu", torch.float16, True, False):
            seen.append(settings())
            raise _Stop
    except _Stop:
        seen.append(settings())
    assert seen[0] != before
    assert seen[1] == before


def test_exit_returns_false():
    for amp in (STOCK, OURS):
        region = amp.amp.autocast("cpu")
        region.__enter__()
        assert region.__exit__(None, None, None) is False


def test_k62_nested_dtypes_and_back():
    x = torch.ones(2, 2)

    def product() -> torch.dtype:
        return (x @ x).dtype

    before = settings()
    seen = [product()]
    with torchamp.autocast("cpu", torch.bfloat16):
        seen.append(product())
        with torchamp.autocast("cpu", enabled=False):
            seen.append(product())
            with torchamp.autocast("cpu", torch.float16):
                seen.append(product())
            seen.append(product())
        seen.append(product())
    seen.append(product())
    full, half, bf16 = torch.float32, torch.float16, torch.bfloat16
    assert seen == [full, bf16, full, half, full, bf16, full]
    assert settings() == before


def test_exit_without_enter_as_stock():
    def program(amp: Implementation) -> Any:
        try:
            amp.amp.autocast("cpu").__exit__(None, None, None)
        finally:
            torch.autocast_increment_nesting()

    ours = assert_same(program)
    assert ours.error is AttributeError


def test_exits_out_of_order_as_stock():
    """Regions that a program enters and leaves by hand, as generators with a region inside do."""

    def program(amp: Implementation) -> Any:
        first = amp.amp.autocast("cpu", torch.bfloat16)
        second = amp.amp.autocast("cpu", torch.float16)
        trace = []
        for step in (first.__enter__, second.__enter__):
            step()
            trace.append(settings())
        for region in (first, second):
            region.__exit__(None, None, None)
            trace.append(settings())
        torch.set_autocast_enabled("cpu", False)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        return trace

    assert_same(program)


def test_left_on_another_thread_as_stock():
    def program(amp: Implementation) -> Any:
        region = amp.amp.autocast("cpu", torch.float16)
        here = []

        def enter() -> None:
            region.__enter__()
            here.append(settings())

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        region.__exit__(None, None, None)
        torch.autocast_increment_nesting()
        return [here, settings()]

    assert_same(program)


def test_a_generator_with_a_region_inside_as_stock():
    """The region stays in force where the generator stops: `with` is not a decorator."""

    def program(amp: Implementation) -> Any:
        def generate() -> Iterator[Any]:
            with amp.amp.autocast("cpu", torch.float16):
                yield settings()
                yield settings()

        steps = generate()
        return [next(steps), settings(), next(steps), settings(), list(steps), settings()]

    assert_same(program)


def test_k68_what_is_never_cast_as_stock():
    def program(amp: Implementation) -> Any:
        double, single = torch.ones(2, 2, dtype=torch.float64), torch.ones(2, 2)
        whole = torch.ones(2, 2, dtype=torch.int64)
        results = {}
        with amp.amp.autocast("cpu", torch.bfloat16):
            results["double"] = double @ double
            results["whole"] = whole @ whole
            results["out="] = torch.mm(single, single, out=torch.empty(2, 2))
            results["in place"] = torch.ones(2, 2).add_(single)
            results["same dtypes in place"] = torch.ones(2, 2).addmm_(single, single)
            try:
                torch.ones(2, 2).addmm_(single.bfloat16(), single)
            except RuntimeError as error:
                results["mixed in place"] = str(error)
            results["meta"] = torch.ones(2, 2, device="meta").mm(single.to("meta")).dtype
        return {key: str(value) for key, value in results.items()}

    ours = assert_same(program)
    assert ours.error is None
    assert "dtype" in ours.value["mixed in place"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_k71_cuda_where_there_is_none_does_nothing_and_says_so():
    def program(amp: Implementation) -> Any:
        with amp.amp.autocast("cuda"):
            x = torch.ones(2, 2)
            return [settings(), str((x @ x).dtype)]

    ours = assert_same(program)
    assert ours.warned == [UserWarning]


# --- the cache of cast weights ---
def _two_products(autocast: Callable[..., Any], weight: torch.Tensor) -> None:
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    with autocast("cpu", torch.bfloat16):
        weight @ x
        weight @ x


def _nested(autocast: Callable[..., Any], weight: torch.Tensor) -> None:
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    with autocast("cpu", torch.bfloat16):
        weight @ x
        with autocast("cpu", torch.bfloat16):
            weight @ x
        with autocast("cpu", enabled=False):
            pass
        weight @ x


def _separate(autocast: Callable[..., Any], weight: torch.Tensor) -> None:
    _two_products(autocast, weight)
    _two_products(autocast, weight)


def _uncached(autocast: Callable[..., Any], weight: torch.Tensor) -> None:
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    with autocast("cpu", torch.bfloat16, cache_enabled=False):
        weight @ x
        with autocast("cpu", torch.bfloat16):
            weight @ x
        with autocast("cpu", torch.bfloat16, cache_enabled=True):
            weight @ x
            weight @ x


def _under_no_grad(autocast: Callable[..., Any], weight: torch.Tensor) -> None:
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    with autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            weight @ x
        (weight @ x).sum().backward()


WEIGHTS = {
    "a weight": lambda: torch.nn.Parameter(torch.ones(2, 2)),
    "a view of a weight": lambda: torch.nn.Parameter(torch.ones(2, 2)).t(),
    "a float16 weight": lambda: torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float16)),
    "a bfloat16 weight": lambda: torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16)),
    "an input": lambda: torch.ones(2, 2),
}


@pytest.mark.parametrize("regions", [_two_products, _nested, _separate, _uncached, _under_no_grad])
@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
def test_as_many_casts_as_stock(regions, weight):
    def program(amp: Implementation) -> Any:
        with CountCasts() as casts:
            regions(amp.amp.autocast, weight())
        return casts.count

    ours = assert_same(program)
    if regions is _two_products and weight is WEIGHTS["a weight"]:
        assert ours.value == 1


def test_k60_no_grad_then_grad_in_one_region():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    x = torch.ones(2, 2)
    with torchamp.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            weight @ x
        loss = (weight @ x).sum()
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize("inner", ["region", "decorated function"])
@pytest.mark.parametrize(("outer_dtype", "inner_dtype"), [HALF_TYPES, HALF_TYPES[::-1]])
def test_difference_a_nested_region_of_another_dtype_drops_cached_casts(
    inner, outer_dtype, inner_dtype
):
    weight = torch.nn.Parameter(torch.randn(4, 4))
    x = torch.randn(4, 4)

    def products(amp: Implementation) -> list[torch.Tensor]:
        def product() -> torch.Tensor:
            return x @ weight

        with amp.amp.autocast("cpu", outer_dtype):
            results = [x @ weight]
            region = amp.amp.autocast("cpu", inner_dtype)
            if inner == "region":
                with region:
                    results.append(x @ weight)
            else:
                results.append(region(product)())
            return [*results, x @ weight]

    with pytest.raises(RuntimeError, match="dtype"):
        products(STOCK)
    torch.clear_autocast_cache()
    seen = products(OURS)
    for result, dtype in zip(seen, (outer_dtype, inner_dtype, outer_dtype), strict=True):
        assert result.dtype is dtype
        assert torch.equal(result, x.to(dtype) @ weight.to(dtype))


# --- one object many times, threads ---
def test_difference_one_object_entered_again_inside_itself():
    before = settings()
    leaks = torch.amp.autocast("cpu", torch.float16)
    with leaks, leaks:
        pass
    assert settings() != before, "stock has been repaired"
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)

    region = torchamp.autocast("cpu", torch.float16, cache_enabled=False)
    seen = []
    with region:
        seen.append(settings())
        with torchamp.autocast("cpu", enabled=False):
            between = settings()
            with region:
                with region:
                    seen.append(settings())
                assert torch.is_autocast_enabled("cpu")
            assert settings() == between
        seen.append(settings())
    assert settings() == before
    assert [state["cpu"] for state in seen] == [(True, "torch.float16")] * 3


def test_difference_recursion_through_a_decorated_function():
    before = settings()

    @torchamp.autocast("cpu", torch.float16)
    def recursive(depth: int) -> list[Any]:
        return [settings()["cpu"]] + (recursive(depth - 1) if depth else [])

    assert recursive(5) == [(True, "torch.float16")] * 6
    assert settings() == before


def test_difference_one_object_in_several_threads_at_once():
    region = torchamp.autocast("cpu", torch.float16)
    rounds, workers = 200, 4
    barrier = threading.Barrier(workers)

    def work(index: int) -> set[Any]:
        surroundings = torchamp.autocast("cpu", HALF_TYPES[index % 2], enabled=index < 2)
        seen = set()
        with surroundings:
            before = settings()
            barrier.wait()
            for _ in range(rounds):
                with region:
                    seen.add(settings()["cpu"])
                seen.add(settings() == before)
        return seen

    with ThreadPoolExecutor(workers) as pool:
        for seen in pool.map(work, range(workers)):
            assert seen == {(True, "torch.float16"), True}


def test_k65_threads_start_without_autocast_and_do_not_disturb_each_other():
    x = torch.ones(2, 2)
    with torchamp.autocast("cpu", torch.float16), ThreadPoolExecutor(1) as pool:
        torch.set_autocast_dtype("cpu", torch.float16)
        assert pool.submit(lambda: (x @ x).dtype).result() is torch.float32
        assert pool.submit(torch.get_autocast_dtype, "cpu").result() is torch.bfloat16
        carried = torchamp.autocast("cpu", torch.get_autocast_dtype("cpu"))
        assert pool.submit(carried(lambda: (x @ x).dtype)).result() is torch.float16

    barrier = threading.Barrier(2)

    def work(dtype: torch.dtype) -> set[torch.dtype]:
        barrier.wait()
        seen = set()
        for _ in range(1000):
            with torchamp.autocast("cpu", dtype):
                seen.add((x @ x).dtype)
        return seen

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, HALF_TYPES)) == [{dtype} for dtype in HALF_TYPES]


def test_a_thread_that_dies_inside_a_region_disturbs_nobody():
    before = settings()
    region = torchamp.autocast("cpu", torch.float16)
    thread = threading.Thread(target=region.__enter__)
    thread.start()
    thread.join()
    assert settings() == before
    with region:
        pass
    assert settings() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_leaves_the_regions_of_other_threads_alone():
    """In the child Python frees what those threads had, on the thread that forked."""
    entered, done = threading.Event(), threading.Event()

    def stay() -> None:
        with torchamp.autocast("cpu", torch.float16):
            entered.set()
            done.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait()
    before = settings()
    child = os.fork()
    if child == 0:
        os._exit(0 if settings() == before else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


# --- decorated functions ---
def test_decorator_as_stock():
    def program(amp: Implementation) -> Any:
        @amp.amp.autocast("cpu", torch.float16)
        def documented(x: torch.Tensor, *, times: int = 1) -> Any:
            """What it does."""
            return [settings(), str((x @ x).dtype), times]

        class Model(torch.nn.Module):
            @amp.amp.autocast("cpu", torch.float16)
            def forward(self, x: torch.Tensor) -> Any:
                return str((x @ x).dtype)

            @classmethod
            @amp.amp.autocast("cpu", torch.float16)
            def make(cls) -> Any:
                return cls.__name__, settings()

            @staticmethod
            @amp.amp.autocast("cpu", torch.float16)
            def fail() -> None:
                raise _Stop

        x = torch.ones(2, 2)
        results = [documented(x, times=3), Model()(x), Model.make(), documented.__doc__]
        results += [documented.__name__, sorted(documented.__annotations__), settings()]
        results.append(vars(documented)["__script_unsupported"])
        try:
            Model.fail()
        except _Stop:
            results.append(settings())
        return results

    ours = assert_same(program)
    assert ours.error is None


@pytest.mark.parametrize("target", [3, "text", None, classmethod(print)], ids=repr)
def test_decorating_what_cannot_be_called_as_stock(target):
    def program(amp: Implementation) -> Any:
        return callable(amp.amp.autocast("cpu")(target))

    assert_same(program)


def test_a_decorated_class_as_stock():
    def program(amp: Implementation) -> Any:
        @amp.amp.autocast("cpu", torch.float16)
        class Thing:
            def __init__(self) -> None:
                self.seen = settings()

        return Thing().seen

    assert_same(program)


def test_a_decorated_function_under_script_as_stock():
    def program(amp: Implementation) -> Any:
        def plain(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        return torch.jit.script(amp.amp.autocast("cpu")(plain))

    ours = assert_same(program)
    assert ours.error is RuntimeError


# --- copies ---
class ModelWithRegion(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.region = torchamp.autocast("cpu", torch.float16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.region:
            return self.linear(x)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda thing: pickle.loads(pickle.dumps(thing))}
REGIONS = {
    "autocast": lambda: torchamp.autocast("cpu", torch.float16, True, False),
    "cuda.amp": lambda: torchamp.cuda.amp.autocast(False),
    "cpu.amp": lambda: torchamp.cpu.amp.autocast(True, torch.float16),
}


@pytest.mark.parametrize("make", REGIONS.values(), ids=REGIONS)
@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copies_of_regions(make, duplicate):
    region = make()
    before = settings()
    with region:  # also while it is entered, here and in the copy
        during = settings()
        twin = duplicate(region)
        assert type(twin) is type(region)
        assert attributes(twin) == attributes(region)
        with twin:
            assert {**settings(), "depth": 1} == during
    assert settings() == before
    with twin:
        assert settings() == during
    assert settings() == before


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copies_of_a_module_with_a_region(duplicate):
    model = ModelWithRegion()
    x = torch.ones(1, 2)
    expected = model(x)
    twin = duplicate(model)
    assert twin.region is not model.region
    assert torch.equal(twin(x), expected)
    assert twin(x).dtype is torch.float16


# --- surroundings ---
def test_under_a_device_context_it_keeps_its_own_rules():
    """torch.device as a context is a function mode; only torch.export's mode takes stock's way."""
    before = settings()
    region = torchamp.autocast("cpu", torch.float16)
    weight = torch.nn.Parameter(torch.ones(2, 2))
    with torch.device("cpu"), torchamp.autocast("cpu", torch.bfloat16):
        weight @ weight
        with region, region:
            assert (weight @ weight).dtype is torch.float16
    assert settings() == before


def test_is_an_autocast_of_torch():
    assert issubclass(torchamp.autocast, torch.amp.autocast)
    assert isinstance(torchamp.cuda.amp.autocast(enabled=False), torchamp.autocast)


def test_subclasses_that_extend_enter_and_exit():
    events = []

    class Logged(torchamp.autocast):
        def __enter__(self):
            events.append("enter")
            return super().__enter__()

        def __exit__(self, *exception):
            events.append("exit")
            return super().__exit__(*exception)

    @Logged("cpu", torch.float16)
    def function() -> Any:
        return settings()["cpu"]

    assert function() == (True, "torch.float16")
    assert events == ["enter", "exit"]
