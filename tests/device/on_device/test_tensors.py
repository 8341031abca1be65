"""What a notebook does with tensors on `cuda`, compared with the same on the host."""

import copy
import io
import pickle
import weakref

import pytest
import torch
from torch import nn

from jgpu.device import current
from jgpu.device.tensor import DeviceTensor


def same(device, host):
    return device.dtype == host.dtype and torch.equal(device.cpu(), host)


def test_a_tensor_says_cuda():
    x = torch.ones(2, 3).cuda()
    assert x.device == torch.device("cuda:0")
    assert x.is_cuda
    assert not x.is_cpu
    assert x.get_device() == 0
    assert x.type() == "torch.cuda.FloatTensor"
    assert torch.zeros(2, device=x.device).is_cuda
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1


def test_another_device_is_refused_as_cuda_does():
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(2, device="cuda:1")


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.arange(7, device=d),
        lambda d: torch.arange(0.0, 1.0, 0.1, device=d),
        lambda d: torch.arange(0.0, 1.0, 0.2, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.full((2, 2), 7, device=d),
        lambda d: torch.tensor([1.5, 2.5], device=d),
        lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
        lambda d: torch.as_tensor([1.0, 2.0], device=d),
        lambda d: torch.tril_indices(3, 3, device=d),
        lambda d: torch.zeros(2, 3, dtype=torch.int64, device=d),
        lambda d: torch.ones(3, device=d).new_tensor([1.0, 2.0]),
        lambda d: torch.ones(3, device=d).new_full((2,), 3.0),
        lambda d: torch.hann_window(6, device=d),
        lambda d: torch.scalar_tensor(3.0, device=d),
        lambda d: torch.ones_like(torch.zeros(2, 2), device=d),
    ],
)
def test_factories_make_what_the_host_makes(make):
    assert same(make("cuda"), make("cpu"))


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.t(),
        lambda x: x[1],
        lambda x: x[:, 1:3],
        lambda x: x.view(6, 2),
        lambda x: x.reshape(2, 6).permute(1, 0).contiguous(),
        lambda x: x.unsqueeze(0).expand(4, 3, 4).sum(0),
        lambda x: x.flatten().as_strided((2, 2), (3, 1), 2),
        lambda x: torch.cat([x, x * 2], 1),
        lambda x: torch.stack(x.unbind(0), 1),
        lambda x: torch.cat(x.split(2, 1), 0),
        lambda x: x.chunk(2)[1] + 1,
        lambda x: x.diagonal() * 2,
        lambda x: x[[2, 0]],
        lambda x: x[x > 5],
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 3, x, -x),
        lambda x: x.masked_fill(x < 4, 0.0),
        lambda x: x.sort(1, descending=True)[0],
        lambda x: x.topk(2)[1],
        lambda x: x.argmax(1),
        lambda x: x.max(1)[0],
        lambda x: x.unique(),
        lambda x: x.to(torch.float64).softmax(1),
        lambda x: x.to(torch.complex64).conj() * 1j,
        lambda x: torch.view_as_real(x.to(torch.complex64) * 1j),
        lambda x: (x.to(torch.complex64) * 1j).imag,
        lambda x: x.cumsum(0),
        lambda x: x @ x.t(),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: x.gather(1, x.long() % 4),
        lambda x: torch.zeros_like(x).scatter_(1, x.long() % 4, x),
        lambda x: x.index_select(0, torch.tensor([1, 1], device=x.device)),
        lambda x: x.std(0),
        lambda x: x.view(torch.int32),
        lambda x: x.mean() + torch.tensor(2.0),
        lambda x: x * torch.tensor(3),
        lambda x: x.flip(0).roll(1, 1),
        lambda x: torch.fft.rfft(x).real,
        lambda x: torch.linalg.inv(x[:, :3] + torch.eye(3, device=x.device) * 20),
        lambda x: torch.bincount(x.long().flatten()),
        lambda x: x.repeat_interleave(2, 1),
        lambda x: x.fill_diagonal_(9.0),
    ],
)
def test_ops_give_the_host_s_bits(op):
    host = torch.arange(12.0).reshape(3, 4)
    assert same(op(host.clone().cuda()), op(host.clone()))


def test_writing_through_a_view_shows_in_the_base():
    def write(device):
        base = torch.zeros(4, 4, device=device)
        base[1] = 5
        base[:, 2] += 1
        base.t()[0].mul_(3).add_(1)
        base.view(-1)[::5] = 7
        return base

    assert same(write("cuda"), write("cpu"))


def test_in_place_views_and_resizes_change_what_the_object_shows():
    def change(device):
        x = torch.arange(6.0, device=device)
        x.resize_(2, 3).t_()
        x.unsqueeze_(0)
        y = torch.empty(0, device=device)
        torch.add(x, 1, out=y)
        y.resize_(2, 2)
        z = torch.ones(3, device=device)
        z.set_(y)
        z.data = z.data * 2
        return torch.cat([x.flatten(), y.flatten(), z.flatten()])

    assert same(change("cuda"), change("cpu"))


def test_growing_a_tensor_keeps_its_beginning():
    x = torch.arange(4.0, device="cuda")
    x.resize_(8)
    assert x[:4].tolist() == [0, 1, 2, 3]


def test_copies_between_host_and_device_in_every_direction():
    host = torch.arange(6.0).reshape(2, 3)
    x = torch.empty(2, 3, device="cuda")
    x.copy_(host)
    assert same(x, host)
    x.copy_(host.t().contiguous().t())
    assert same(x, host)
    x[0].copy_(torch.tensor(9.0))
    assert x[0].tolist() == [9, 9, 9]
    back = torch.empty(2, 3)
    back.copy_(x)
    assert back[0].tolist() == [9, 9, 9]
    assert same(host.to("cuda", torch.float64), host.double())
    assert x.to("cpu", torch.int32).dtype == torch.int32


def test_an_upload_has_copied_when_it_returns():
    host = torch.zeros(3_000_000)
    device = host.cuda()
    host.fill_(1)
    assert device.sum().item() == 0


def test_uploads_larger_than_the_arena_go_in_pieces():
    host = torch.arange(20_000_000, dtype=torch.int64)  # 160 MB through 32
    device = host.cuda()
    assert int(device[-1]) == 19_999_999
    assert torch.equal(device.cpu(), host)


def test_strides_survive_the_way_there_and_back():
    host = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    device = host.cuda()
    assert device.stride() == host.stride()
    assert device.cpu().stride() == host.stride()
    assert torch.equal(device.cpu(), host)


def test_mixing_devices_raises_torch_s_own_message():
    x = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.cat([x, torch.ones(2)])


def test_wrong_shapes_raise_torch_s_own_errors_before_anything_is_sent():
    x = torch.ones(2, 3, device="cuda")
    current.session.synchronize()
    before = current.session.connection.bytes_sent
    with pytest.raises(RuntimeError, match="must match the size"):
        x + torch.ones(4, device="cuda")[:4].view(4)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        x @ x
    with pytest.raises(IndexError, match="out of range"):
        x.sum(5)
    assert (
        current.session.connection.bytes_sent - before < 600
    )  # the factory of the second line alone


def test_numpy_and_other_libraries_are_refused_as_on_cuda():
    x = torch.ones(2, device="cuda")
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(BufferError, match="DLPack"):
        torch.utils.dlpack.to_dlpack(x) if False else x.__dlpack__()
    assert not hasattr(x, "__cuda_array_interface__")
    assert x.numpy(force=True).tolist() == [1, 1]


def test_printing_and_formatting():
    x = torch.tensor([1.5, 2.0], device="cuda")
    assert repr(x) == "tensor([1.5000, 2.0000], device='cuda:0')"
    assert repr(x.double()) == "tensor([1.5000, 2.0000], device='cuda:0', dtype=torch.float64)"
    assert f"{x.sum():.3f}" == "3.500"
    p = nn.Parameter(x)
    assert repr(p).startswith("Parameter containing:\ntensor([1.5000, 2.0000], device='cuda:0'")
    assert "requires_grad=True" in repr(p)
    assert "grad_fn=<MulBackward0>" in repr(p * 2)


def test_addresses_tell_what_aliases():
    x = torch.ones(4, 4, device="cuda")
    y = torch.ones(4, 4, device="cuda")
    assert x.data_ptr() != y.data_ptr()
    assert x.view(16).data_ptr() == x.data_ptr()
    assert x[1].data_ptr() == x.data_ptr() + 16
    assert x.untyped_storage().data_ptr() == x[1].untyped_storage().data_ptr()
    assert x.untyped_storage().nbytes() == 64


def test_deepcopy_keeps_sharing_and_parameters():
    net = nn.Linear(3, 3).cuda()
    net.tied = net.weight
    twin = copy.deepcopy(net)
    assert twin.tied is twin.weight
    assert isinstance(twin.weight, nn.Parameter)
    with torch.no_grad():
        net.weight.zero_()
    assert twin.weight.abs().sum().item() > 0


def test_moving_a_module_keeps_everybody_s_identity():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = net[0].weight
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    seen = weakref.ref(weight)
    calls = []
    weight.register_hook(lambda grad: calls.append("hook"))
    weight.register_post_accumulate_grad_hook(lambda p: calls.append("post"))
    net.to("cuda")
    assert net[0].weight is weight
    assert seen() is weight
    assert optimizer.param_groups[0]["params"][0] is weight
    assert isinstance(weight, nn.Parameter)
    assert weight.is_cuda
    net(torch.ones(3, 2, device="cuda")).sum().backward()
    assert calls == ["hook", "post"]
    optimizer.step()
    net.cpu()
    assert net[0].weight is weight
    assert not weight.is_cuda


def test_moving_a_module_whose_output_lives():
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    out = net(torch.ones(1, 2))
    net.to("cuda")
    assert net.weight.is_cuda
    assert any(p is net.weight for p in optimizer.param_groups[0]["params"])
    assert out.device.type == "cpu"


def test_gradients_move_with_their_parameters():
    net = nn.Linear(2, 1)
    net(torch.ones(1, 2)).sum().backward()
    net.cuda()
    assert net.weight.grad.is_cuda
    assert net.weight.grad.tolist() == [[1, 1]]


def test_half_and_double_convert_in_place():
    net = nn.Linear(2, 2).cuda()
    weight = net.weight
    net.double()
    assert net.weight is weight
    assert weight.dtype == torch.float64
    assert net(torch.ones(1, 2, dtype=torch.float64, device="cuda")).dtype == torch.float64


def test_saved_files_are_those_of_a_cuda_machine():
    net = nn.Linear(3, 2).cuda()
    shared = torch.arange(6.0, device="cuda")
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "a": shared, "b": shared[2:4]}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["net"]["weight"].is_cuda
    assert torch.equal(loaded["net"]["weight"], net.weight)
    loaded["a"][2] = 77
    assert loaded["b"][0].item() == 77
    file.seek(0)
    host = torch.load(file, weights_only=True, map_location="cpu")
    assert type(host["a"]) is torch.Tensor
    assert host["b"].tolist() == [2, 3]


def test_a_host_file_loads_onto_the_device():
    file = io.BytesIO()
    torch.save(torch.arange(3.0), file)
    file.seek(0)
    assert torch.load(file, map_location="cuda").is_cuda
    file.seek(0)
    assert not torch.load(file).is_cuda


def test_parameters_and_whole_modules_pickle():
    net = nn.Linear(2, 2).cuda()
    twin = pickle.loads(pickle.dumps(net))
    assert isinstance(twin.weight, nn.Parameter)
    assert twin.weight.is_cuda
    assert torch.equal(twin.weight, net.weight)


def test_default_device():
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
        assert torch.get_default_device().type == "cuda"
    finally:
        torch.set_default_device(None)
    with torch.device("cuda"):
        assert torch.zeros(1).is_cuda


def test_freed_tensors_are_freed_on_the_device():
    session = current.session
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    before = session.memory().used
    del x
    assert before - session.memory().used >= 4 << 20


def test_everything_on_the_device_is_our_tensor():
    x = torch.ones(2, device="cuda")
    assert type(x) is DeviceTensor
    assert isinstance(x, torch.Tensor)
    assert type(x * 2) is DeviceTensor


def test_the_default_dtype_of_the_notebook_counts():
    host, device = torch.tensor([1, 2]), torch.tensor([1, 2], device="cuda")
    assert (device / 2).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert same(device / 2, host / 2)
        assert same(torch.ones(2, device="cuda") / 3, torch.ones(2) / 3)
        assert same(device.sqrt(), host.sqrt())
    finally:
        torch.set_default_dtype(torch.float32)
    assert same(device / 2, host / 2)


def test_a_tensor_of_numbers_can_be_made_whatever_was_recorded_before():
    x = torch.ones(3, device="cuda")
    for before in range(140):
        for _ in range(before):
            x = x * 1.0
        assert torch.tensor(before, device="cuda").item() == before
        assert torch.as_tensor([before], device="cuda").tolist() == [before]


@pytest.mark.parametrize("exponent", [2, 1, 2.0, 1.0, 0.5, 0, -1])
def test_powers_of_tensors_that_lie_otherwise_than_in_rows(exponent):
    host = torch.arange(1.0, 241.0)
    for lay in (
        lambda x: x.view(1, 240).mT,
        lambda x: x.view(12, 20).mT,
        lambda x: x.view(12, 20)[::2, ::4],
        lambda x: x.view(1, 1, 240).expand(2, 1, 240),
    ):
        native = lay(host) ** exponent
        for _ in range(3):
            assert torch.equal((lay(host.cuda()) ** exponent).cpu(), native)


def test_rms_norm_of_a_tensor_that_lies_otherwise_than_in_rows():
    host = torch.arange(240.0)
    for lay, width in ((lambda x: x.view(12, 20)[::2, ::4], 5), (lambda x: x.view(12, 20).mT, 12)):
        native = torch.nn.functional.rms_norm(lay(host), (width,))
        assert torch.equal(torch.nn.functional.rms_norm(lay(host.cuda()), (width,)).cpu(), native)
