# Statement for statement the training script of a widely read introduction to torch.cuda.amp.
import torch
import torch.nn as nn
import torch.optim as optim
from torch.cuda.amp import GradScaler, autocast

torch.manual_seed(0)


class MLP(nn.Module):
    def __init__(self):
        super(MLP, self).__init__()  # noqa: UP008
        self.linear1 = nn.Linear(10, 100)
        self.linear2 = nn.Linear(100, 10)

    def forward(self, x):
        x = torch.relu(self.linear1(x))
        x = self.linear2(x)
        return x


model = MLP().cuda()
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(model.parameters(), lr=0.01)

scaler = GradScaler()

inputs = torch.randn(100, 10).cuda()
targets = torch.randint(0, 10, (100,)).cuda()

for epoch in range(1):
    print(f"inputs dtype:{inputs.dtype}")
    with autocast():
        outputs = model(inputs)
        print(f"outputs dtype:{outputs.dtype}")
        loss = criterion(outputs, targets)
        print(f"loss dtype:{loss.dtype}")
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(f"Epoch {epoch + 1}, Loss: {loss.item():.4f}")
