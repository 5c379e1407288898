"""Trains a three-layer perceptron on MNIST in mixed precision (as mnist.cpp)."""

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torchamp
from idx import DataError, Dataset, load_split
from report import Progress, RunLog
from torch import nn

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DATA = Path(__file__).resolve().parents[2] / "data" / "mnist"
BATCH_SIZE = 64
TEST_BATCH_SIZE = 1000

Number = TypeVar("Number", int, float)


class Net(nn.Module):
    def __init__(self, logits: bool) -> None:
        super().__init__()
        self.logits = logits
        self.fc1 = nn.Linear(784, 256)
        self.fc2 = nn.Linear(256, 128)
        self.fc3 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(-1, 784)
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        x = self.fc3(x)
        # cross_entropy takes a softmax by itself; the one here is the tutorial's, and redundant.
        return x if self.logits else torch.softmax(x, dim=1)


def normalise(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    return images.to(device, torch.float32).div_(255).sub_(0.1307).div_(0.3081)


def autocast(args: argparse.Namespace) -> torchamp.autocast:
    dtype = PRECISIONS[args.precision]
    return torchamp.autocast(args.device, dtype=dtype, enabled=dtype != torch.float32)


def train_step(
    model: Net,
    optimizer: torch.optim.Optimizer,
    scaler: torchamp.GradScaler,
    images: torch.Tensor,
    labels: torch.Tensor,
    args: argparse.Namespace,
) -> torch.Tensor:
    with autocast(args):
        output = model(images)
        loss = nn.functional.cross_entropy(output, labels)

    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


def train(model: Net, data: Dataset, args: argparse.Namespace) -> int:
    """Trains for all epochs and returns how many steps the scaler skipped."""
    device = torch.device(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    # Only float16 has so small a range that gradients need scaling.
    scaler = torchamp.GradScaler(
        args.device,
        init_scale=args.init_scale,
        growth_interval=args.growth_interval,
        enabled=args.precision == "fp16",
    )
    generator = torch.Generator().manual_seed(args.seed)

    steps = 0

    def count_step(*_: object) -> None:
        nonlocal steps
        steps += 1

    # Called unless the scaler skips the step. Comparing scales would wait for the GPU.
    optimizer.register_step_post_hook(count_step)

    size = len(data.images)
    batches = (size + BATCH_SIZE - 1) // BATCH_SIZE
    progress = Progress(args.epochs * batches)
    log = RunLog(args.csv)
    for epoch in range(args.epochs):
        order = torch.randperm(size, generator=generator)
        for batch in range(batches):
            chosen = order[batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE]
            images = normalise(data.images[chosen], device)
            labels = data.labels[chosen].to(device)

            scale = scaler.get_scale() if args.csv else 0.0  # reading it waits for the GPU
            steps_before = steps
            loss = train_step(model, optimizer, scaler, images, labels, args)

            if args.csv:
                log.row(epoch * batches + batch, loss.item(), scale, steps == steps_before)
            if batch % 100 == 0:
                progress.line(
                    f"Train Epoch: {epoch} [{batch * len(chosen)}/{size} "
                    f"({100.0 * batch / batches:.0f}%)]\tLoss: {loss.item():.6f}"
                )
            progress.advance()
    progress.clear()
    log.close()
    return args.epochs * batches - steps


def count_correct(model: Net, data: Dataset, args: argparse.Namespace) -> int:
    device = torch.device(args.device)
    correct = 0
    with torch.no_grad(), autocast(args):
        for images, labels in zip(
            data.images.split(TEST_BATCH_SIZE), data.labels.split(TEST_BATCH_SIZE), strict=True
        ):
            predicted = model(normalise(images, device)).argmax(1)
            correct += int((predicted == labels.to(device)).sum())
    return correct


def run(args: argparse.Namespace) -> None:
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("mnist.py: error: no CUDA device is available")
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    train_data, test_data = load_split(args.data, "train"), load_split(args.data, "t10k")

    torch.manual_seed(args.seed)
    model = Net(args.logits).to(args.device)
    start = time.monotonic()
    skipped_steps = train(model, train_data, args)
    seconds = time.monotonic() - start

    correct, size = count_correct(model, test_data, args), len(test_data.images)
    print(f"Skipped steps: {skipped_steps}")
    print(f"Training time: {seconds:.2f} s")
    print(f"Test accuracy: {correct / size:.4f} ({correct}/{size})")


def at_least(least: Number) -> Callable[[str], Number]:
    """An argparse type: a finite number of the same type that is at least `least`."""

    def number(text: str) -> Number:
        value = type(least)(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least {least:g}")
        return value

    return number


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where to train")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="fp16", help="dtype")
    parser.add_argument("--logits", action="store_true", help="leave out the redundant softmax")
    parser.add_argument("--epochs", type=at_least(1), default=10, help="passes over the data")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the IDX files")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of parameters and data order")
    parser.add_argument("--threads", type=at_least(0), default=0, help="0: torch's own choice")
    parser.add_argument("--csv", type=Path, help="write iteration, loss, scale, skipped")
    parser.add_argument("--init-scale", type=at_least(1.0), default=65536.0, help="first scale")
    parser.add_argument(
        "--growth-interval", type=at_least(1), default=2000, help="steps before the scale doubles"
    )
    return parser.parse_args()


def main() -> int:
    try:
        run(parse_args())
    except (DataError, OSError) as error:
        print(f"mnist.py: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
