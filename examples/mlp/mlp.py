"""One training step of a small multi-layer perceptron in mixed precision (as mlp.cpp)."""

import argparse
import sys

import torch
import torchamp
from torch import nn

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(10, 100)
        self.linear2 = nn.Linear(100, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear2(torch.relu(self.linear1(x)))


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def train(device: torch.device, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = MLP().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    # Only float16 has so small a range that gradients need scaling. A disabled scaler passes
    # everything through, so the loop below is the same for every precision.
    scaler = torchamp.GradScaler(device.type, enabled=dtype == torch.float16)

    inputs = torch.randn(100, 10).to(device)
    targets = torch.randint(0, 10, (100,)).to(device)

    for epoch in range(1):
        print(f"inputs dtype: {name(inputs.dtype)}")
        with torchamp.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            outputs = model(inputs)
            print(f"outputs dtype: {name(outputs.dtype)}")
            loss = criterion(outputs, targets)
            print(f"loss dtype: {name(loss.dtype)}")

        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"Epoch {epoch + 1}, Loss: {loss.item():.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="fp16")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("mlp.py: error: no CUDA device is available")
    train(torch.device(args.device), PRECISIONS[args.precision])


if __name__ == "__main__":
    main()
