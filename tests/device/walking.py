"""Call every function of `torch.accelerator`, `torch.cuda` and the C++ functions below them.

Argument: "before" or "after", the first use of the device. Writes each name before its call, so
that the last line names a call that ended the process.
"""

import importlib
import pkgutil
import sys
import warnings
from types import ModuleType

import torch

#: they end a process, write a file, or read one from the network
LEFT_OUT = {"signal", "profile_plot", "segment_plot", "trace_plot", "segsum", "_compile_kernel"}
ARGUMENTS = ((), (0,), (None,), ("cuda",))
WORDS = ("_accelerator", "_cuda", "_host_")


def functions():
    """All that can be called, by name."""
    for top in (torch.accelerator, torch.cuda):
        below = [importlib.import_module(f"{top.__name__}.{each.name}")
                 for each in pkgutil.iter_modules(top.__path__)]  # fmt: skip
        for module in (top, *below):
            for name, value in sorted(vars(module).items()):
                if not (name.startswith("__") or name.endswith(("Storage", "Tensor"))):
                    yield f"{module.__name__}.{name}", value
    for name, value in sorted(vars(torch._C).items()):
        if name.startswith(WORDS):
            yield f"torch._C.{name}", value


warnings.simplefilter("ignore")
if sys.argv[1] == "after":
    torch.ones(1, device="cuda").sum().item()
asserted = []
for name, value in functions():
    if not callable(value) or isinstance(value, ModuleType):
        continue
    if name.rpartition(".")[2] in LEFT_OUT:
        continue
    for arguments in ARGUMENTS:
        sys.stdout.write(f"{name}{arguments}\n")
        sys.stdout.flush()
        try:
            value(*arguments)
        except (Exception, SystemExit) as error:
            if "INTERNAL ASSERT" in str(error):
                asserted.append(name)
sys.stdout.write(f"asserted: {asserted}\n{torch.ones(2, device='cuda').sum().item()}\n")
