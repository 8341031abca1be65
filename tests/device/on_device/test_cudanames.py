"""Every public name of `torch.cuda` works on the shared device, or is refused in a sentence."""

import importlib
import pkgutil
import re
from types import ModuleType

import pytest
import torch

from jgpu.errors import NotSupported

#: the error text of a torch without CUDA whose C++ has no such function
LACKING = re.compile(
    r"module 'torch\._C' has no attribute|not compiled|dummy base class|not supported on this plat|"
    r"'NoneType' object has no attribute"
)
#: they wait, change what other tests look at, or fetch a program
LEFT_OUT = {"set_stream", "profile_plot", "segment_plot", "trace_plot", "memory", "segsum"}
MODULES = ["torch.cuda"] + [
    f"torch.cuda.{each.name}"
    for each in pkgutil.iter_modules(torch.cuda.__path__)
    if not each.name.startswith("_")
]


def names():
    for module in map(importlib.import_module, MODULES):
        public = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
        for name in public:
            value = getattr(module, name)
            if callable(value) and not isinstance(value, ModuleType) and name not in LEFT_OUT:
                yield f"{module.__name__}.{name}", value


def ways():
    x = torch.ones(4, device="cuda")
    return [(), (0,), (x,), ("cuda:0",), ([x],), ([x], [x]), (False,)]


@pytest.mark.filterwarnings("ignore")
def test_no_name_of_torch_cuda_lacks_its_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some take a word for a file that they write
    lacking, count = {}, 0
    for name, value in names():
        count += 1
        for args in ways():
            try:
                value(*args)
            except Exception as error:
                if LACKING.search(str(error)):
                    lacking.setdefault(name, str(error))
    torch.cuda.manual_seed(0)
    assert lacking == {}
    assert count > 150


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.cuda.nccl.version(),
        lambda: torch.cuda.nccl.unique_id(),
        lambda: torch.cuda.nccl.all_reduce([torch.ones(1)] * 2),
        lambda: torch.cuda.tunable.enable(),
        lambda: torch.cuda.tunable.set_filename("a"),
        lambda: torch.cuda.gds.GdsFile("a", 0),
        lambda: torch.cuda.gds.gds_register_buffer(None),
    ],
)
def test_what_a_kernel_has_not_is_refused_in_a_sentence(call):
    with pytest.raises(NotSupported, match=r"^The shared device does not support [^:]+: .+\.$"):
        call()


def test_collectives_of_one_device_are_done():
    x, made = torch.arange(3.0, device="cuda"), torch.zeros(3, device="cuda")
    torch.cuda.nccl.all_reduce([x])
    torch.cuda.nccl.broadcast([x])
    torch.cuda.nccl.reduce([x], made)
    assert x.tolist() == made.tolist() == [0.0, 1.0, 2.0]
    torch.cuda.nccl.all_gather([x], [made.zero_()])
    assert made.tolist() == [0.0, 1.0, 2.0]
    assert not torch.cuda.nccl.is_available([x])


def test_tuned_products_are_off():
    torch.cuda.tunable.enable(False)
    assert not torch.cuda.tunable.is_enabled()
    assert torch.cuda.tunable.get_results() == ()


@pytest.mark.filterwarnings("ignore::UserWarning")  # native PyTorch warns, too
def test_old_sparse_types():
    made = torch.cuda.sparse.FloatTensor(
        torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), torch.Size([3])
    )
    assert made.to_dense().tolist() == [1.0, 0.0, 2.0]
    assert isinstance(made, torch.cuda.sparse.FloatTensor)
    assert not isinstance(made, torch.cuda.sparse.DoubleTensor)
    assert not isinstance(made.to_dense(), torch.cuda.sparse.FloatTensor)


def test_only_a_stream_becomes_the_current_one():
    with pytest.raises(TypeError, match="not str"):
        torch.cuda.set_stream("cuda")
    assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)


def test_errors_of_the_runtime_have_their_number():
    torch.cuda.check_error(0)
    with pytest.raises(torch.cuda.CudaError, match="2"):
        torch.cuda.check_error(2)


def test_the_accelerator_in_python_and_in_c_says_the_same():
    x = torch.ones(1000, device="cuda")
    assert x.sum().item() == 1000
    assert torch.accelerator.empty_host_cache() is None
    assert torch.accelerator.memory.empty_host_cache() is None
    assert torch._C._accelerator_emptyHostCache() is None
    assert torch._C._accelerator_getMemoryInfo(0)[1] == torch.accelerator.get_memory_info()[1]
    stats = torch._C._accelerator_getDeviceStats(0)
    assert stats["allocated_bytes"]["all"]["current"] == torch.accelerator.memory_allocated()
    assert torch._C._accelerator_hooks_get_current_device() == 0
    assert torch._C._accelerator_isAllocatorInitialized()
    with pytest.raises(NotSupported, match="device graphs"):
        torch.accelerator.Graph()
