"""Ctrl-C in the imports that torch does by itself, at the first op mostly: it comes behind them.

Each runs in a process of its own, for what was imported once is not imported again.
"""

import pytest

pytestmark = pytest.mark.e2e

#: Ctrl-C in the midst of an import: where the module is looked for that `strike_in` names
STRIKING = """
import signal, sys

class Finder:
    struck = []

    def find_spec(self, name, path=None, target=None):
        if name == strike_in and not self.struck:
            self.struck.append(name)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())

def interrupted(function):
    try:
        function()
    except KeyboardInterrupt:
        return True
    return False
"""

FIRST_OP = """
import torch
assert "torch.distributed.tensor" not in sys.modules and "sympy" not in sys.modules

def first():
    (torch.ones(2, device="cuda") + 1).sum().item()
    while True:
        pass

assert interrupted(first)
assert Finder.struck == [strike_in] and strike_in in sys.modules
assert (torch.ones(2, device="cuda") + 1).tolist() == [2.0, 2.0]
assert torch.nn.LSTM(3, 3).cuda()(torch.ones(2, 3, device="cuda"))[0].shape == (2, 3)
print("well")
"""

#: what a notebook imports itself
OWN = """
def first():
    import sympy

assert interrupted(first)
assert Finder.struck == [strike_in] and strike_in not in sys.modules
import torch
assert (torch.ones(2, device="cuda") + 1).tolist() == [2.0, 2.0]
print("well")
"""

#: the device is made at the end of `import torch`
MAKING = """
def first():
    import torch
    while True:
        pass

assert interrupted(first)
assert Finder.struck == [strike_in] and strike_in in sys.modules
import torch
assert (torch.ones(2, device="cuda") + 1).tolist() == [2.0, 2.0]
print("well")
"""


@pytest.mark.parametrize("name", ["sympy.core", "sympy.printing", "torch.distributed.tensor._ops"])
def test_an_interrupt_in_the_imports_of_the_first_op_leaves_a_device_that_works(broker, name):
    source = f"strike_in = {name!r}\n{STRIKING}{FIRST_OP}"
    assert broker.seat(source).check().out == "well\n"


def test_an_interrupt_in_an_import_of_the_notebooks_own_ends_it(broker):
    source = f"strike_in = 'sympy.core'\n{STRIKING}{OWN}"
    assert broker.seat(source).check().out == "well\n"


def test_an_interrupt_while_the_device_is_made_leaves_one_that_works(broker):
    source = f"strike_in = 'jgpu.device.hooks.collectives'\n{STRIKING}{MAKING}"
    assert broker.seat(source).check().out == "well\n"
