"""Programs that users bring, on stock and on torchamp: the same to the last bit.

Lightning and Accelerate are optional: `make callers` installs them, else those tests are skipped.
"""

import contextlib
import importlib
import warnings

import pytest
import torch
from stock_and_ours import assert_same, scaler_state
from torch import nn

INF = float("inf")


def batches(count, *shape):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(*shape, generator=generator) for _ in range(count)]


def half(amp):
    return amp.amp.autocast("cpu", dtype=torch.float16)


def small_model():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


# --- scripts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_amp", [True, False])
def test_the_recipe_of_pytorchs_documentation(use_amp):
    """Train, clip, save, load, train on; with `enabled` switching all of it off."""

    def run(amp):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = amp.scaler(enabled=use_amp)
        loss_fn = nn.MSELoss()
        data, targets = batches(6, 8, 6), batches(6, 8, 3)
        for epoch in range(2):
            for inputs, target in zip(data, targets, strict=True):
                with amp.amp.autocast("cpu", dtype=torch.float16, enabled=use_amp):
                    loss = loss_fn(model(inputs).float(), target)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            if epoch == 0:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": scaler.state_dict(),
                }
                model, scaler = small_model(), amp.scaler(enabled=use_amp)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
                model.load_state_dict(checkpoint["model"])
                optimizer.load_state_dict(checkpoint["optimizer"])
                scaler.load_state_dict(checkpoint["scaler"])
        return list(model.parameters()), scaler_state(scaler)

    assert assert_same(run).error is None


def test_a_gan_with_two_optimizers():
    """Two losses of one scaler, two steps, one update; the generator sits out every third turn."""

    def run(amp):
        generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
        for_g = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))
        for_d = torch.optim.Adam(discriminator.parameters(), lr=0.01, fused=True)
        scaler = amp.scaler(init_scale=2.0**14, growth_interval=3)
        loss_fn = nn.BCEWithLogitsLoss()
        scales = []
        for turn, (noise, real) in enumerate(zip(batches(9, 8, 4), batches(9, 8, 6), strict=True)):
            for_d.zero_grad()
            with half(amp):
                fake = generator(noise)
                on_real = loss_fn(discriminator(real), torch.ones(8, 1))
                on_fake = loss_fn(discriminator(fake.detach()), torch.zeros(8, 1))
                loss = (on_real + on_fake) * (INF if turn == 4 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(for_d)
            if turn % 3:
                for_g.zero_grad()
                with half(amp):
                    loss = loss_fn(discriminator(fake), torch.ones(8, 1))
                scaler.scale(loss).backward()
                scaler.unscale_(for_g)
                scaler.step(for_g)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, [*generator.parameters(), *discriminator.parameters()]

    assert assert_same(run).error is None


def test_accumulation_clipping_scheduler_and_resume(tmp_path):
    def run(amp):
        def fresh():
            model = small_model()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
            return model, optimizer, scheduler, amp.scaler(init_scale=2.0**12, growth_interval=4)

        parts = fresh()
        rates = []
        for step, inputs in enumerate(batches(24, 4, 6)):
            model, optimizer, scheduler, scaler = parts
            with half(amp):
                loss = model(inputs).float().pow(2).mean() / 3
            scaler.scale(loss * (INF if step == 10 else 1.0)).backward()
            if step % 3 == 2:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                if scaler.get_scale() >= before:
                    scheduler.step()
                rates.append(scheduler.get_last_lr()[0])
            if step == 14:
                path = tmp_path / f"{amp.name}.pt"
                torch.save([part.state_dict() for part in parts], path)
                parts = fresh()
                for part, state in zip(parts, torch.load(path), strict=True):
                    part.load_state_dict(state)
        return rates, list(parts[0].parameters()), scaler_state(parts[3])

    assert assert_same(run).error is None


def test_gradient_penalty():
    """Gradients of scaled losses, unscaled by hand, in a second loss."""

    def run(amp):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = amp.scaler(init_scale=2.0**10)
        for inputs in batches(6, 4, 6):
            optimizer.zero_grad()
            with half(amp):
                loss = model(inputs).float().pow(2).mean()
            grads = torch.autograd.grad(
                outputs=scaler.scale(loss), inputs=model.parameters(), create_graph=True
            )
            inverse = 1.0 / scaler.get_scale()
            grads = [grad * inverse for grad in grads]
            with half(amp):
                loss = loss + sum(grad.pow(2).sum() for grad in grads).sqrt()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return list(model.parameters()), scaler_state(scaler)

    assert assert_same(run).error is None


def test_several_losses_of_several_models():
    """The recipe for multiple models, losses and optimizers."""

    def run(amp):
        models = [small_model(), small_model()]
        optimizers = [
            torch.optim.SGD(models[0].parameters(), lr=0.05),
            torch.optim.Adagrad(models[1].parameters(), lr=0.05),
        ]
        scaler = amp.scaler(init_scale=2.0**10, growth_interval=2)
        for inputs in batches(5, 4, 6):
            for optimizer in optimizers:
                optimizer.zero_grad()
            with half(amp):
                outputs = [model(inputs).float() for model in models]
                first = (2 * outputs[0] + 3 * outputs[1]).pow(2).mean()
                second = (3 * outputs[0] - 5 * outputs[1]).pow(2).mean()
            first, second = scaler.scale([first, second])
            first.backward(retain_graph=True)
            second.backward()
            scaler.unscale_(optimizers[0])
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        return [param for model in models for param in model.parameters()], scaler_state(scaler)

    assert assert_same(run).error is None


def test_exponential_average_and_swapped_weights():
    def run(amp):
        model = small_model()
        average = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
        scaler = amp.scaler(init_scale=2.0**10, growth_interval=2)
        for inputs in batches(6, 4, 6):
            optimizer.zero_grad()
            with half(amp):
                loss = model(inputs).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(model)
        return list(average.parameters()), scaler_state(scaler)

    assert assert_same(run).error is None


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model(fullgraph):
    def run(amp):
        torch._dynamo.reset()
        model = small_model()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=fullgraph)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = amp.scaler(init_scale=2.0**10, growth_interval=2)
        for inputs in batches(4, 4, 6):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = compiled(inputs).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return list(model.parameters()), scaler_state(scaler)

    assert assert_same(run).error is None


def test_activation_checkpointing():
    from torch.utils.checkpoint import checkpoint

    def run(amp):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = amp.scaler(init_scale=2.0**10, growth_interval=2)
        for inputs in batches(4, 4, 6):
            optimizer.zero_grad()
            with half(amp):
                outputs = checkpoint(model, inputs, use_reentrant=False)
            scaler.scale(outputs.float().pow(2).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        return list(model.parameters()), scaler_state(scaler)

    assert assert_same(run).error is None


# --- Lightning -----------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("optimizer_name", ["SGD", "AdamW"])
def test_lightning(tmp_path, clip, optimizer_name):
    lightning = pytest.importorskip("lightning.pytorch")
    plugins = importlib.import_module("lightning.pytorch.plugins.precision")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = small_model()
            self.scales = []

        def training_step(self, batch, index):
            loss = self.model(batch).float().pow(2).mean()
            return loss * (INF if index == 3 else 1.0)

        def on_train_batch_end(self, *args):
            self.scales.append(self.trainer.precision_plugin.scaler.get_scale())

        def configure_optimizers(self):
            return getattr(torch.optim, optimizer_name)(self.parameters(), lr=0.01)

    def run(amp):
        lightning.seed_everything(0, verbose=False)
        scaler = amp.scaler(init_scale=2.0**12, growth_interval=3)
        plugin = plugins.MixedPrecision("16-mixed", "cpu", scaler)
        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            plugins=[plugin],
            max_epochs=2,
            gradient_clip_val=clip,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, torch.utils.data.DataLoader(batches(8, 6), batch_size=None))
        return module.scales, list(module.parameters()), scaler_state(scaler), plugin.state_dict()

    result = assert_same(run)
    assert result.error is None


# --- Accelerate ----------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("fused", [False, True])
def test_accelerate(monkeypatch, accumulate, fused):
    """Accelerate makes its own scaler; on a CPU it does not, so it is handed one."""
    accelerate = pytest.importorskip("accelerate")
    optimizer_module = importlib.import_module("accelerate.optimizer")

    def run(amp):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        accelerator.scaler = scaler = amp.scaler(init_scale=2.0**12, growth_interval=3)
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        assert isinstance(optimizer, optimizer_module.AcceleratedOptimizer)
        assert optimizer.scaler is scaler
        skipped = []
        for index, inputs in enumerate(batches(10, 4, 6)):
            with accelerator.accumulate(model), half(amp):
                loss = model(inputs).float().pow(2).mean() * (INF if index == 5 else 1.0)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            skipped.append((accelerator.optimizer_step_was_skipped, scheduler.get_last_lr()))
        return skipped, list(model.parameters()), scaler_state(scaler)

    def fresh(amp):
        accelerate.state.AcceleratorState._reset_state(True)
        with contextlib.suppress(AttributeError):
            accelerate.state.GradientState._reset_state()
        return run(amp)

    result = assert_same(fresh)
    assert result.error is None
