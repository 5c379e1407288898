"""The operators torch.ops.torchamp.unscale_ and update_scale_, called as they are."""

import itertools

import pytest
import torch
import torchamp  # noqa: F401  registers the operators
from stock_and_ours import bits

INF = float("inf")
NAN = float("nan")
unscale_ = torch.ops.torchamp.unscale_
update_scale_ = torch.ops.torchamp.update_scale_
stock_unscale_ = torch._amp_foreach_non_finite_check_and_unscale_
stock_update_ = torch._amp_update_scale_


def scalar(value, dtype=torch.float32):
    return torch.tensor(value, dtype=dtype)


def as_stock(grads, inverse):
    """The flag of stock's operator, which works on the gradients in place."""
    found_inf = scalar(0.0)
    stock_unscale_(grads, found_inf, scalar(inverse))
    return found_inf


# --- unscale_ ------------------------------------------------------------------------------------

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LAYOUTS = {
    "dense": lambda t: t,
    "transposed": lambda t: t.t(),
    "every second row": lambda t: t[::2],
    "every third column": lambda t: t[:, ::3],
    "inner block": lambda t: t[1:-1, 1:-1],
    "one column": lambda t: t[:, 0],
    "misaligned": lambda t: t.flatten()[1:],
    "flipped strides": lambda t: t.flatten().as_strided((5, 7), (1, 5)),
    "no elements": lambda t: t[:0],
    "one element": lambda t: t[0, 0],
}


def specials(dtype):
    info = torch.finfo(dtype)
    return [
        0.0,
        -0.0,
        info.max,
        -info.max,
        info.tiny,
        info.smallest_normal / 4,
        info.eps,
        1.0,
        -3.0,
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("bad", [None, INF, -INF, NAN])
def test_same_bits_and_flag_as_stock(dtype, layout, bad):
    torch.manual_seed(0)
    base = torch.randn(13, 33).to(dtype)
    base.view(-1)[: len(specials(dtype))] = torch.tensor(specials(dtype), dtype=dtype)
    if bad is not None and layout(base).numel():
        layout(base)[(-1,) * layout(base).dim()] = bad
    for inverse in (1.0, 0.5, 2.0**-16, 1 / 3):
        ours, stock = base.clone(), base.clone()
        found_inf = scalar(0.0)
        unscale_([layout(ours)], found_inf, scalar(inverse), True)
        expected = as_stock([layout(stock)], inverse)
        assert bits(ours) == bits(stock)
        assert found_inf.item() == expected.item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [0, 1, 7, 8, 1023, 1024, 16383, 16384, 40000, -1])
def test_an_overflow_at_any_position_is_found(dtype, position):
    grad = torch.ones(40001, dtype=dtype)
    grad[position] = NAN
    found_inf = scalar(0.0)
    unscale_([torch.ones(3), grad], found_inf, scalar(4.0))
    assert found_inf.item() == 1.0
    grad[position] = 0.25
    assert (grad == 0.25).all()


@pytest.mark.parametrize("where", list(itertools.product([0, 1], repeat=4)))
def test_zero_element_tensors_anywhere(where):
    grads = [torch.full((0, 3) if empty else (2, 2), 8.0) for empty in where]
    found_inf = scalar(0.0)
    unscale_(grads, found_inf, scalar(8.0))
    assert found_inf.item() == 0.0
    assert all((grad == 1.0).all() for grad in grads)


def test_empty_list():
    found_inf = scalar(0.0)
    unscale_([], found_inf, scalar(8.0))
    assert found_inf.item() == 0.0


def test_neighbours_in_the_storage_are_left_alone():
    base = torch.full((6, 6), 8.0)
    unscale_([base[1:5:2, ::2]], scalar(0.0), scalar(8.0))
    touched = torch.zeros(6, 6, dtype=torch.bool)
    touched[1:5:2, ::2] = True
    assert (base[touched] == 1.0).all()
    assert (base[~touched] == 8.0).all()


def test_the_flag_is_only_set_never_cleared():
    for found_inf in (scalar(1.0), scalar(3.0)):
        before = found_inf.item()
        unscale_([torch.ones(2)], found_inf, scalar(2.0))
        assert found_inf.item() == before


def test_scale_or_inverse():
    for value, is_inverse in ((8.0, False), (1 / 8, True)):
        grad = torch.full((3,), 24.0)
        unscale_([grad], scalar(0.0), scalar(value), is_inverse)
        assert grad.tolist() == [3.0] * 3


def test_one_element_of_any_shape():
    grad = torch.full((3,), 24.0)
    found_inf = torch.zeros(1, 1)
    unscale_([grad, torch.tensor(NAN)], found_inf, torch.tensor([8.0]))
    assert (grad.tolist(), found_inf.item()) == ([3.0] * 3, 1.0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.complex32])
def test_complex_as_pairs(dtype):
    grad = torch.tensor([8 + 16j, -8j]).to(dtype)
    found_inf = scalar(0.0)
    unscale_([grad], found_inf, scalar(8.0))
    assert grad.to(torch.complex64).tolist() == [1 + 2j, -1j]
    assert found_inf.item() == 0.0
    bad = torch.tensor([complex(1.0, INF)]).to(dtype)
    unscale_([bad], found_inf, scalar(8.0))
    assert found_inf.item() == 1.0


def test_views_with_a_conjugate_or_negative_bit():
    base = torch.tensor([8 + 16j])
    unscale_([base.conj()], scalar(0.0), scalar(8.0))
    assert base.tolist() == [1 + 2j]
    base = torch.tensor([8.0])
    unscale_([torch._neg_view(base)], scalar(0.0), scalar(8.0))
    assert base.tolist() == [1.0]


ERRORS = {
    "found_inf of two elements": (
        lambda: ([torch.ones(1)], torch.zeros(2), scalar(1.0)),
        "found_inf",
    ),
    "found_inf of float64": (
        lambda: ([torch.ones(1)], scalar(0.0, torch.float64), scalar(1.0)),
        "found_inf",
    ),
    "scale of no element": (lambda: ([torch.ones(1)], scalar(0.0), torch.ones(0)), "scale"),
    "scale of half": (lambda: ([torch.ones(1)], scalar(0.0), scalar(1.0, torch.half)), "scale"),
    "integers": (
        lambda: ([torch.ones(1), torch.ones(2, dtype=int)], scalar(0.0), scalar(1.0)),
        "gradient 2",
    ),
    "float8": (
        lambda: ([torch.ones(2).to(torch.float8_e5m2)], scalar(0.0), scalar(1.0)),
        "not implemented",
    ),
    "expanded": (lambda: ([torch.ones(1).expand(3)], scalar(0.0), scalar(1.0)), "clone"),
    "sliding window": (
        lambda: ([torch.ones(8).as_strided((3, 4), (2, 1))], scalar(0.0), scalar(1.0)),
        "clone",
    ),
    "interleaved": (
        lambda: ([torch.ones(20).as_strided((4, 4), (2, 3))], scalar(0.0), scalar(1.0)),
        "clone",
    ),
}


@pytest.mark.parametrize(("arguments", "text"), ERRORS.values(), ids=ERRORS)
def test_errors_change_nothing(arguments, text):
    grads, found_inf, scale = arguments()
    first = torch.full((2,), 8.0)
    before = [bits(tensor.float()) for tensor in grads]
    with pytest.raises(RuntimeError, match=text):
        unscale_([first, *grads], found_inf, scale)
    assert first.tolist() == [8.0, 8.0]
    assert [bits(tensor.float()) for tensor in grads] == before


def test_dtype_and_layout_errors_are_not_implemented_errors():
    for grad in (torch.ones(2, dtype=int), torch.eye(2).to_sparse_csr()):
        with pytest.raises(NotImplementedError):
            unscale_([grad], scalar(0.0), scalar(1.0))


@pytest.mark.parametrize(
    "interleaved", [((2, 3), (3, 2)), ((3, 2), (2, 7)), ((2, 2, 2), (4, 2, 1))]
)
def test_interleaved_but_not_overlapping(interleaved):
    shape, strides = interleaved
    base = torch.full((20,), 8.0)
    unscale_([base.as_strided(shape, strides)], scalar(0.0), scalar(8.0))
    assert (base == 1.0).sum() == base.as_strided(shape, strides).numel()


def test_no_autograd():
    grad = torch.full((2,), 8.0, requires_grad=True)
    version = grad._version
    unscale_([grad], scalar(0.0), scalar(8.0))
    assert grad.is_leaf
    assert grad._version == version
    product = torch.ones(2, requires_grad=True) * 8.0
    unscale_([product], scalar(0.0), scalar(8.0))
    assert product.grad_fn.name() == "MulBackward0"


def test_many_threads_of_many_tensors():
    """Chunks of one tensor may go to different threads: the bits are those of one thread."""
    torch.manual_seed(0)
    sizes = [1, 100_000, 3, 70_001, 16_384, 32_768, 16_385, 5] * 3
    grads = [torch.randn(size) for size in sizes]
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        copies = [grad.clone() for grad in grads]
        unscale_(copies, scalar(0.0), scalar(3.0))
        results.append(copies)
    torch.set_num_threads(threads)
    for copies in results:
        assert all(map(torch.equal, copies, results[0]))


# --- update_scale_ -------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0, 65536.0, 2.0**127, 1e-45, INF, NAN])
@pytest.mark.parametrize("tracker", [0, 3, 4])
@pytest.mark.parametrize("found", [0.0, 1.0, 0.5, NAN, -1.0])
@pytest.mark.parametrize("factors", [(2.0, 0.5), (1.1, 0.9), (1e300, 1e-300)])
def test_update_as_stock(scale, tracker, found, factors):
    ours = scalar(scale), scalar(tracker, torch.int32)
    stock = scalar(scale), scalar(tracker, torch.int32)
    update_scale_(*ours, [scalar(found)], *factors, 5)
    stock_update_(*stock, scalar(found), *factors, 5)
    assert list(map(bits, ours)) == list(map(bits, stock))


@pytest.mark.parametrize(
    "flags", [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [NAN, 0.0], [0.0] * 9 + [1.0]]
)
def test_update_combines_flags_and_leaves_them(flags):
    scale, tracker = scalar(8.0), scalar(0, torch.int32)
    tensors = [scalar(flag) for flag in flags]
    update_scale_(scale, tracker, tensors, 2.0, 0.5, 10)
    assert scale.item() == (8.0 if not any(flags) else 4.0)
    assert list(map(bits, tensors)) == [bits(scalar(flag)) for flag in flags]


def test_update_grows_when_the_tracker_is_above_the_interval():
    scale, tracker = scalar(8.0), scalar(9, torch.int32)
    update_scale_(scale, tracker, [scalar(0.0)], 2.0, 0.5, 5)
    assert (scale.item(), tracker.item()) == (16.0, 0)


def test_update_with_the_largest_tracker():
    scale, tracker = scalar(8.0), scalar(2**31 - 1, torch.int32)
    update_scale_(scale, tracker, [scalar(0.0)], 2.0, 0.5, 2**40)
    assert (scale.item(), tracker.item()) == (8.0, 2**31 - 1)


@pytest.mark.parametrize(
    "arguments",
    [
        (scalar(1.0, torch.float64), scalar(0, torch.int32), [scalar(0.0)]),
        (scalar(1.0), scalar(0, torch.int64), [scalar(0.0)]),
        (scalar(1.0), scalar(0, torch.int32), [scalar(0.0, torch.half)]),
        (scalar(1.0), scalar(0, torch.int32), []),
        (torch.ones(2), scalar(0, torch.int32), [scalar(0.0)]),
        (scalar(1.0), scalar(0, torch.int32), [torch.zeros(3)]),
    ],
)
def test_update_errors(arguments):
    before = list(map(bits, arguments[:2]))
    with pytest.raises(RuntimeError):
        update_scale_(*arguments, 2.0, 0.5, 5)
    assert list(map(bits, arguments[:2])) == before


# --- as PyTorch sees them ------------------------------------------------------------------------

SAMPLES = {
    "one": lambda: ([torch.full((3,), 8.0)], scalar(0.0), scalar(8.0)),
    "several": lambda: (
        [torch.ones(2, 2), torch.ones(0), torch.ones(3, dtype=torch.float64)],
        scalar(0.0),
        scalar(0.5),
        True,
    ),
    "half types": lambda: (
        [torch.ones(5, dtype=torch.half), torch.ones(4, dtype=torch.bfloat16)],
        scalar(0.0),
        scalar(4.0),
    ),
    "with inf": lambda: ([torch.tensor([INF, 1.0])], scalar(0.0), scalar(2.0)),
    "transposed": lambda: ([torch.ones(2, 3).t()], scalar(0.0), scalar(2.0)),
    "none": lambda: ([], scalar(0.0), scalar(2.0)),
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_opcheck_unscale(sample):
    torch.library.opcheck(unscale_.default, sample())


@pytest.mark.parametrize("flags", [[0.0], [1.0], [0.0, 1.0, 0.0]])
def test_opcheck_update_scale(flags):
    arguments = scalar(8.0), scalar(4, torch.int32), [scalar(flag) for flag in flags]
    torch.library.opcheck(update_scale_.default, (*arguments, 2.0, 0.5, 5))


def test_meta_tensors_check_arguments():
    grads = [torch.ones(3, device="meta")]
    flag, scale = torch.zeros((), device="meta"), torch.ones((), device="meta")
    assert unscale_(grads, flag, scale) is None
    with pytest.raises(RuntimeError, match="same device"):
        unscale_([torch.ones(3)], flag, scale)
    with pytest.raises(RuntimeError, match="found_inf"):
        unscale_(grads, torch.zeros(2, device="meta"), scale)


def test_mixed_devices_are_refused():
    with pytest.raises(RuntimeError, match="same device"):
        unscale_([torch.ones(2), torch.ones(2, device="meta")], scalar(0.0), scalar(1.0))
    with pytest.raises(RuntimeError, match="same device"):
        unscale_([torch.ones(2)], scalar(0.0), torch.ones((), device="meta"))


def test_under_vmap_it_refuses():
    """There is no batching rule, as there is none for stock's operator."""

    def function(grad):
        unscale_([grad], scalar(0.0), scalar(2.0))
        return grad

    def stock_function(grad):
        stock_unscale_([grad], scalar(0.0), scalar(2.0))
        return grad

    for run in (function, stock_function):
        with pytest.raises(RuntimeError):
            torch.func.vmap(run)(torch.ones(3, 2))


def test_compiled_without_a_graph_break():
    def function(grads, found_inf, scale, tracker):
        unscale_(grads, found_inf, scale)
        update_scale_(scale, tracker, [found_inf], 2.0, 0.5, 1)
        return grads[0] + found_inf, scale * 1

    def arguments(value):
        return (
            [torch.full((2,), value), torch.ones(3)],
            scalar(0.0),
            scalar(8.0),
            scalar(0, torch.int32),
        )

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for value in (16.0, INF):
        expected, given = arguments(value), arguments(value)
        results = compiled(*given), function(*expected)
        for left, right in zip(results[0], results[1], strict=True):
            assert bits(left) == bits(right)
        for left, right in zip(
            given[0] + list(given[1:]), expected[0] + list(expected[1:]), strict=True
        ):
            assert bits(left) == bits(right)
