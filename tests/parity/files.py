"""Writes and reads files of tensors, natively or on the shared device; `test_files` compares.

    python files.py write|read|train DEVICE PATH [OUT]

`write`: tensors of many kinds. `read`: everything that such a file holds, as plain bytes, with what
it shares. `train`: goes on with a training that another process saved, and saves it again.
"""

import pickle
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from runner import frozen


def kinds(device):
    """Tensors of many types, shapes and kinds, some of which share their storage."""
    torch.manual_seed(0)
    base = torch.randn(6, 4).to(device)
    made = {
        "base": base, "row": base[2], "turned": base.t(), "strided": base[::2, 1:3],
        "empty": torch.zeros(0, 3).to(device), "scalar": torch.tensor(2.5).to(device),
        "expanded": torch.ones(1, 3).to(device).expand(4, 3), "bool": (base > 0).clone(),
        "complex": torch.complex(base, -base), "conj": torch.complex(base, base).conj(),
        "parameter": nn.Parameter(base.clone()), "frozen": nn.Parameter(base.clone(), False),
        "grad": base.clone().requires_grad_(), "channels": torch.randn(2, 3, 4, 4).to(device),
        "host": torch.arange(5), "list": [base[0], (base[1], {"deep": base[3]})], "number": 3,
    }  # fmt: skip
    made["channels"] = made["channels"].to(memory_format=torch.channels_last)
    for dtype in ("float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8"):
        made[dtype] = (base * 3).to(getattr(torch, dtype))
    return made


def flat(value):
    """Every leaf of nested containers."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def told(value):
    """A leaf as bytes, with how it lies and what it is."""
    if not isinstance(value, torch.Tensor):
        return frozen(value)
    kind = (type(value) is nn.Parameter or isinstance(value, nn.Parameter), value.requires_grad)
    return (*frozen(value), value.stride(), value.storage_offset(), *kind)


def shares(found):
    """Which leaves show one storage, by position of the first that does."""
    storages = [
        leaf.untyped_storage().data_ptr() or id(leaf)
        if isinstance(leaf, torch.Tensor)
        else id(leaf)
        for leaf in found
    ]
    return [storages.index(each) for each in storages]


def trained(device, saved=None):
    """Three steps, from where `saved` ended; the state to save."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2, amsgrad=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    if saved is not None:
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    for _ in range(3):
        x, y = torch.randn(16, 6).to(device), torch.randint(0, 3, (16,)).to(device)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        scheduler.step()
    states = (net, optimizer, scheduler)
    return dict(
        zip(("net", "optimizer", "scheduler"), (s.state_dict() for s in states), strict=True)
    )


def main(what, device, path, out=""):
    """Do one of the three."""
    torch.set_num_threads(1)
    if what == "write":
        torch.save(kinds(device), path)
        torch.save(kinds(device), path + ".old", _use_new_zipfile_serialization=False)
    elif what == "read":
        found = {}
        for name in (path, path + ".old"):
            for weights_only in (True, False):
                leaves = flat(torch.load(name, map_location=device, weights_only=weights_only))
                found[name, weights_only] = [told(leaf) for leaf in leaves], shares(leaves)
        Path(out).write_bytes(pickle.dumps(list(found.values())))
    else:
        saved = None
        if path != "-":
            saved = torch.load(path, map_location=device, weights_only=True)
        torch.save(trained(device, saved), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
