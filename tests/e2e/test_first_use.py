"""What a process pays before its first result: little, or between two cells."""

import pytest
from host import until

pytestmark = pytest.mark.e2e


def test_an_upload_does_not_make_torch_import_its_machinery(host):
    program = host.program(
        "import sys, torch\n"
        "x = torch.ones(1000).cuda()\n"
        "y = torch.ones(3).to('cuda')\n"
        "loaded = [n for n in ('torch.distributed.tensor', 'torch._dynamo') if n in sys.modules]\n"
        "print(loaded, x.device, x.sum().item(), y.tolist())\n"
    )
    out, _ = program.communicate(timeout=90)
    assert out == "[] cuda:0 1000.0 [1.0, 1.0, 1.0]\n"


def test_what_the_first_op_needs_is_there_soon_after_the_cell_that_imports_torch(host):
    notebook = host.notebook()
    notebook.ok("import torch")
    warm = "from jgpu.device import current; print(current.is_warm())"
    until(lambda: notebook.ok(warm) == "True", "a warm kernel")
    loaded = notebook.ok("import sys; print('torch._dynamo' in sys.modules)")
    assert loaded == "True"
    # nobody had to be asked for that: the session begins with the first use
    assert host.sessions == {}
    assert notebook.ok("print(torch.ones(2).cuda().sum().item())") == "2.0"
