"""DTensor gradients, and one decision for all processes: what stock gives them, two processes."""

import pytest
import torch
import torch.distributed as dist
import torchamp
from two_processes import assert_same_in_both, run_in_two_processes

INF = float("inf")

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs torch.distributed's gloo"
)


def make_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def spoil(model, rank, step):
    """An overflow in step 2, on one process only."""
    if step == 2 and rank == 1:
        grad = next(model.parameters()).grad
        grad = grad.to_local() if hasattr(grad, "to_local") else grad
        grad.view(-1)[:1] = INF


def train(amp, rank, model, make_optimizer=None, unscale=True, seed=0, share=None):
    make_optimizer = make_optimizer or (
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)
    )
    optimizer = make_optimizer(model.parameters())
    scaler = share or amp.scaler(init_scale=1024.0, growth_interval=2)
    scales, found = [], []
    generator = torch.Generator().manual_seed(seed)
    for step in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 4, generator=generator)).pow(2).mean()
        scaler.scale(loss).backward()
        spoil(model, rank, step)
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        flags = scaler._found_inf_per_device(optimizer)
        found.append({str(device): type(flag).__name__ for device, flag in flags.items()})
        scaler.update()
        scales.append(scaler.get_scale())
    grads = [whole(param.grad) for param in model.parameters()]
    return scales, found, [whole(param) for param in model.parameters()], grads


def fsdp2(amp, rank, **options):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert type(next(model.parameters())).__name__ == "DTensor"
    return train(amp, rank, model, seed=rank, **options)


def fsdp2_with_unscale(amp, rank):
    return fsdp2(amp, rank)


def fsdp2_without_unscale(amp, rank):
    return fsdp2(amp, rank, unscale=False)


def fsdp2_fused(amp, rank):
    return fsdp2(
        amp,
        rank,
        make_optimizer=lambda params: torch.optim.AdamW(params, fused=True),
        unscale=False,
    )


def tensor_parallel(amp, rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2,))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return train(amp, rank, parallelize_module(make_model(), mesh, plan))


def data_parallel(amp, rank):
    """The same overflow reaches both processes through the averaged gradients."""
    model = torch.nn.parallel.DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = amp.scaler(init_scale=1024.0, growth_interval=2)
    scales = []
    generator = torch.Generator().manual_seed(rank)
    for step in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 4, generator=generator)).pow(2).mean()
        scaler.scale(loss * (INF if step == 2 and rank == 1 else 1.0)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, list(model.parameters()), [param.grad for param in model.parameters()]


def sharded_scaler(amp, rank):
    """FSDP's own scaler, over stock and over ours: it shares the flags by itself."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    class Mixed(ShardedGradScaler, amp.amp.GradScaler):
        pass

    scaler_class = Mixed if amp.amp is torchamp.amp else ShardedGradScaler
    scaler = scaler_class(
        "cpu", init_scale=1024.0, growth_interval=2, process_group=dist.group.WORLD
    )
    return train(amp, rank, make_model(), share=scaler, seed=rank)


SCENARIOS = [
    fsdp2_with_unscale,
    fsdp2_without_unscale,
    fsdp2_fused,
    tensor_parallel,
    data_parallel,
    sharded_scaler,
]


@pytest.fixture(scope="module")
def results():
    return run_in_two_processes(SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_processes(results, scenario):
    """The same as stock in each process, and the same scales and flags in both."""
    first, second = assert_same_in_both(results[scenario.__name__])
    assert first[1] == second[1]
    if scenario is not sharded_scaler:  # there, parameters and gradients are each process's own
        assert first == second
