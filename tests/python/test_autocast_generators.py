"""Decorated generators, coroutines and async generators run inside the region.

Stock runs their bodies outside it: a difference by design. What they do otherwise is compared with
the same function undecorated.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchamp

INSIDE, OUTSIDE = (True, torch.float16), (False, torch.bfloat16)


def state() -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


@pytest.fixture(autouse=True)
def outside_before_and_after():
    assert state() == OUTSIDE
    yield
    assert state() == OUTSIDE
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0


def half() -> torchamp.autocast:
    return torchamp.autocast("cpu", torch.float16)


@types.coroutine
def suspend(value: Any) -> Any:
    """Stops the event loop's step here; returns what is sent."""
    return (yield value)


class Boom(Exception):
    pass


# --- generators ---
def talkative(log: list[Any], stop: Any = "end"):
    """Yields, takes values and exceptions, and notes where it was."""
    try:
        log.append(("start", state()))
        got = yield 1
        log.append((got, state()))
        try:
            got = yield 2
        except Boom as error:
            log.append((repr(error), state()))
            got = yield "caught"
        log.append((got, state()))
        yield 3
        return stop
    finally:
        log.append(("finally", state()))


def drive(generator: Any, actions: list[tuple[str, Any]]) -> list[Any]:
    """What each action on a generator gives."""
    results: list[Any] = []
    for name, value in actions:
        assert state() == OUTSIDE
        try:
            results.append(getattr(generator, name)(*value))
        except StopIteration as end:
            results.append(("end", end.value))
        except BaseException as error:
            results.append(type(error))
        assert state() == OUTSIDE
    return results


SCRIPTS = {
    "next": [("__next__", ())] * 5,
    "send": [("send", (None,)), ("send", ("a",)), ("send", ("b",)), ("send", ("c",))],
    "throw, caught": [
        ("__next__", ()),
        ("send", ("a",)),
        ("throw", (Boom("now"),)),
        ("send", ("b",)),
        ("__next__", ()),
    ],
    "throw, not caught": [("__next__", ()), ("throw", (Boom("now"),)), ("__next__", ())],
    "throw a type": [("__next__", ()), ("send", (0,)), ("throw", (Boom,))],
    "throw before the start": [("throw", (Boom("now"),)), ("__next__", ())],
    "throw GeneratorExit": [("__next__", ()), ("throw", (GeneratorExit(),))],
    "close": [("__next__", ()), ("close", ()), ("__next__", ())],
    "close before the start": [("close", ()), ("__next__", ())],
    "close twice": [("__next__", ()), ("close", ()), ("close", ())],
    "send before the start": [("send", ("early",)), ("__next__", ())],
}


@pytest.mark.parametrize("actions", SCRIPTS.values(), ids=SCRIPTS)
def test_a_generator_does_the_same_inside_the_region(actions):
    plain_log: list[Any] = []
    log: list[Any] = []
    expected = drive(talkative(plain_log), actions)
    assert drive(half()(talkative)(log), actions) == expected
    assert [entry for entry, _ in log] == [entry for entry, _ in plain_log]
    assert {where for _, where in log} <= {INSIDE}
    assert {where for _, where in plain_log} <= {OUTSIDE}


def test_difference_stock_runs_a_decorated_generator_outside():
    stock, ours = [], []
    list(torch.amp.autocast("cpu", torch.float16)(talkative)(stock))
    list(half()(talkative)(ours))
    assert {where for _, where in stock} == {OUTSIDE}, "stock has been repaired"
    assert {where for _, where in ours} == {INSIDE}


def test_a_generator_that_is_dropped_is_closed_inside_the_region():
    log: list[Any] = []
    generator = half()(talkative)(log)
    next(generator)
    del generator
    gc.collect()
    assert log == [("start", INSIDE), ("finally", INSIDE)]


def test_a_generator_that_ignores_close():
    def stubborn():
        with contextlib.suppress(GeneratorExit):
            yield
        yield

    generator = half()(stubborn)()
    next(generator)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        generator.close()


def test_interleaved_generators_of_different_regions():
    seen = []

    def walk(name: str):
        for step in range(3):
            seen.append((name, step, state()))
            yield

    bf16 = torchamp.autocast("cpu", torch.bfloat16)
    walkers = [half()(walk)("half"), bf16(walk)("bf16"), half()(walk)("half again"), walk("none")]
    for _ in range(3):
        for walker in walkers:
            next(walker)
    where = {"half": INSIDE, "half again": INSIDE, "bf16": (True, torch.bfloat16), "none": OUTSIDE}
    assert len(seen) == 12
    assert all(found == where[name] for name, _, found in seen)


def test_a_recursive_generator_of_one_region():
    @half()
    def tree(depth: int):
        yield depth, state()
        if depth:
            yield from tree(depth - 1)
            yield from tree(depth - 1)

    visited = list(tree(3))
    assert len(visited) == 15
    assert {where for _, where in visited} == {INSIDE}


def test_a_context_manager_from_a_decorated_generator():
    """Its body is suspended while the block runs: the block is outside."""

    @contextlib.contextmanager
    @half()
    def resource():
        inside.append(state())
        yield
        inside.append(state())

    inside: list[Any] = []
    with resource():
        assert state() == OUTSIDE
    assert inside == [INSIDE, INSIDE]


def test_methods():
    class Source:
        factor = 2

        @half()
        def instance(self):
            yield self.factor, state()

        @classmethod
        @half()
        def of_class(cls):
            yield cls.factor, state()

        @staticmethod
        @half()
        def static():
            yield 2, state()

        @half()
        async def later(self):
            return self.factor, state()

    source = Source()
    for generator in (source.instance(), Source.of_class(), Source.static(), source.static()):
        assert list(generator) == [(2, INSIDE)]
    assert asyncio.run(source.later()) == (2, INSIDE)
    assert inspect.isgeneratorfunction(source.instance)
    assert inspect.iscoroutinefunction(source.later)


# --- coroutines ---
async def calls(log: list[Any]):
    log.append(("start", state()))
    got = await suspend("first")
    log.append((got, state()))
    try:
        got = await suspend("second")
        log.append((got, state()))
    except Boom as error:
        log.append((repr(error), state()))
        await suspend("caught")
    finally:
        log.append(("finally", state()))
    return "result"


COROUTINE_SCRIPTS = {
    "send": [("send", (None,)), ("send", ("a",)), ("send", ("b",)), ("send", ("c",))],
    "throw, caught": [("send", (None,)), ("send", (1,)), ("throw", (Boom(1),)), ("send", (2,))],
    "throw, not caught": [("send", (None,)), ("throw", (Boom(1),)), ("send", (2,))],
    "close": [("send", (None,)), ("send", (1,)), ("close", ()), ("send", (2,))],
}


@pytest.mark.parametrize("actions", COROUTINE_SCRIPTS.values(), ids=COROUTINE_SCRIPTS)
def test_a_coroutine_does_the_same_inside_the_region(actions):
    plain_log: list[Any] = []
    log: list[Any] = []
    expected = drive(calls(plain_log), actions)
    assert drive(half()(calls)(log), actions) == expected
    assert [entry for entry, _ in log] == [entry for entry, _ in plain_log]
    assert {where for _, where in log} == {INSIDE}


def test_two_interleaved_tasks_do_not_disturb_each_other():
    seen: list[Any] = []

    async def work(name: str, expected: Any):
        for _ in range(5):
            seen.append((name, state() == expected))
            await asyncio.sleep(0)

    async def main():
        bf16 = torchamp.autocast("cpu", torch.bfloat16)
        await asyncio.gather(
            half()(work)("half", INSIDE),
            bf16(work)("bf16", (True, torch.bfloat16)),
            work("none", OUTSIDE),
        )

    asyncio.run(main())
    assert [name for name, _ in seen[:6]] == ["half", "bf16", "none"] * 2
    assert all(right for _, right in seen)


def test_one_region_in_two_interleaved_tasks_that_await_futures():
    region = half()
    seen: list[Any] = []

    @region
    async def wait(future: asyncio.Future[int]) -> int:
        seen.append(state())
        result = await future
        seen.append(state())
        return result

    async def main():
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(2)]
        tasks = [asyncio.create_task(wait(future)) for future in futures]
        await asyncio.sleep(0)
        assert state() == OUTSIDE
        for number, future in enumerate(futures):
            future.set_result(number)
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0, 1]
    assert seen == [INSIDE] * 4


def test_a_cancelled_task_cleans_up_inside_the_region():
    seen: list[Any] = []

    @half()
    async def forever():
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(state())
            await asyncio.sleep(0)
            seen.append(state())

    async def main():
        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == [INSIDE, INSIDE]


def test_an_exception_of_a_coroutine_reaches_who_awaits():
    @half()
    async def fail():
        await asyncio.sleep(0)
        raise Boom

    with pytest.raises(Boom):
        asyncio.run(fail())


def test_a_coroutine_that_is_never_awaited_warns():
    async def function(): ...

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        half()(function)()
        gc.collect()
    assert ["never awaited" in str(warning.message) for warning in caught] == [True]


# --- async generators ---
async def async_talkative(log: list[Any]):
    try:
        log.append(("start", state()))
        got = yield 1
        log.append((got, state()))
        await asyncio.sleep(0)
        log.append(("after sleep", state()))
        try:
            got = yield 2
        except Boom as error:
            log.append((repr(error), state()))
            got = yield "caught"
        log.append((got, state()))
        yield 3
    finally:
        await asyncio.sleep(0)
        log.append(("finally", state()))


async def async_drive(generator: Any, actions: list[tuple[str, Any]]) -> list[Any]:
    results: list[Any] = []
    for name, value in actions:
        assert state() == OUTSIDE
        try:
            results.append(await getattr(generator, name)(*value))
        except BaseException as error:
            results.append(type(error))
        assert state() == OUTSIDE
    with contextlib.suppress(BaseException):
        await generator.aclose()
    return results


ASYNC_SCRIPTS = {
    "next": [("__anext__", ())] * 5,
    "send": [("asend", (None,)), ("asend", ("a",)), ("asend", ("b",)), ("asend", ("c",))],
    "throw, caught": [
        ("__anext__", ()),
        ("asend", ("a",)),
        ("athrow", (Boom("now"),)),
        ("asend", ("b",)),
        ("__anext__", ()),
    ],
    "throw, not caught": [("__anext__", ()), ("athrow", (Boom("now"),)), ("__anext__", ())],
    "throw before the start": [("athrow", (Boom("now"),)), ("__anext__", ())],
    "throw StopAsyncIteration": [("__anext__", ()), ("athrow", (StopAsyncIteration(),))],
    "close": [("__anext__", ()), ("aclose", ()), ("__anext__", ())],
    "close before the start": [("aclose", ()), ("__anext__", ())],
    "close twice": [("__anext__", ()), ("aclose", ()), ("aclose", ())],
    "send before the start": [("asend", ("early",)), ("__anext__", ())],
}


@pytest.mark.parametrize("actions", ASYNC_SCRIPTS.values(), ids=ASYNC_SCRIPTS)
def test_an_async_generator_does_the_same_inside_the_region(actions):
    plain_log: list[Any] = []
    log: list[Any] = []
    expected = asyncio.run(async_drive(async_talkative(plain_log), actions))
    assert asyncio.run(async_drive(half()(async_talkative)(log), actions)) == expected
    assert [entry for entry, _ in log] == [entry for entry, _ in plain_log]
    assert {where for _, where in log} <= {INSIDE}


def test_an_async_generator_that_ignores_close():
    async def stubborn():
        with contextlib.suppress(GeneratorExit):
            yield
        yield

    async def main():
        generator = half()(stubborn)()
        await anext(generator)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            await generator.aclose()

    asyncio.run(main())


def test_interleaved_async_generators():
    async def walk(expected: Any):
        for _ in range(3):
            await asyncio.sleep(0)
            yield state() == expected

    async def collect(generator: Any) -> list[bool]:
        return [value async for value in generator]

    async def main():
        bf16 = torchamp.autocast("cpu", torch.bfloat16)
        return await asyncio.gather(
            collect(half()(walk)(INSIDE)),
            collect(bf16(walk)((True, torch.bfloat16))),
            collect(walk(OUTSIDE)),
        )

    assert asyncio.run(main()) == [[True] * 3] * 3


def test_an_async_generator_that_is_left_early_is_closed_inside_the_region():
    log: list[Any] = []

    async def main():
        async for _ in half()(async_talkative)(log):
            break
        gc.collect()
        await asyncio.sleep(0.01)  # the loop closes it

    asyncio.run(main())
    assert log == [("start", INSIDE), ("finally", INSIDE)]


def test_async_generators_that_are_open_when_the_loop_ends(caplog):
    """asyncio closes all that it knows at the same time."""
    log: list[Any] = []
    kept = [half()(async_talkative)(log) for _ in range(5)]

    async def main():
        for generator in kept:
            await anext(generator)

    asyncio.run(main())
    assert log == [("start", INSIDE)] * 5 + [("finally", INSIDE)] * 5
    assert not caplog.records


# --- what the wrappers say of themselves ---
def plain(): ...


def generator():
    """Generates."""
    yield


async def coroutine(): ...


async def async_generator():
    yield


@types.coroutine
def old_coroutine():
    return (yield)


QUESTIONS = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
    inspect.isfunction,
    inspect.signature,
    lambda function: function.__name__,
    lambda function: function.__qualname__,
    lambda function: function.__doc__,
    lambda function: function.__module__,
)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    "function", [plain, generator, coroutine, async_generator, old_coroutine, talkative]
)
def test_a_wrapper_looks_like_what_it_wraps(function: Callable[..., Any], question: Any):
    wrapper = half()(function)
    assert wrapper.__wrapped__ is function
    assert question(wrapper) == question(function)
    assert (
        vars(wrapper)["__script_unsupported"]
        == "@autocast() decorator is not supported in script mode"
    )


def test_partial_functions():
    log: list[Any] = []
    wrapper = half()(functools.partial(talkative, log, stop="partial"))
    assert inspect.isgeneratorfunction(wrapper)
    list(wrapper())
    assert {where for _, where in log} == {INSIDE}


def test_types_coroutine_stays_awaitable():
    async def main():
        return await half()(old_coroutine)()

    running = main()
    running.send(None)
    with pytest.raises(StopIteration) as end:
        running.send("answer")
    assert end.value.value == "answer"
