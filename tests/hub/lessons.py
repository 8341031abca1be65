"""Cells of a lesson: what a student trains, on whatever device, and what it must come to."""

import os
import sys

import processes

__all__ = ["TRAIN", "losses_alone", "trained"]

#: `device` and `steps` are set before; prints "begun", leaves `losses`, and reads `stop`. A step
#: keeps the device for longer than recording it takes, or shares would be those of the processor.
TRAIN = """
import torch
torch.manual_seed(7)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(),
    torch.nn.Linear(256, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = torch.randn(1024, 64).to(device)
target = torch.arange(1024).to(device) % 10
losses = []
print("begun", flush=True)
for step in range(steps):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(data), target)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        losses.append(loss.item())
"""


def trained(steps):
    """The cell for a kernel."""
    return f"device, steps = 'cuda', {steps}\n{TRAIN}"


def losses_alone(steps):
    """The losses of the same cell in a process that has a processor of its own."""
    code = f"device, steps = 'cpu', {steps}\n{TRAIN}\nprint([x.hex() for x in losses])"
    done = processes.run(
        [sys.executable, "-c", code],
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.splitlines()[-1]
