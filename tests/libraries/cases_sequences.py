"""Libraries for sequences and files: einops, diffusers, PEFT, x-transformers, safetensors."""

import pictures  # noqa: F401 - before what imports torchvision  # isort: skip

import tempfile
from pathlib import Path

import torch
from cases import case, on_device, seed, state_of, train
from einops import rearrange, reduce, repeat
from einops.layers.torch import Rearrange
from torch import nn
from torch.nn.functional import mse_loss

STEPS = 3


@case
def einops_layers(device):
    """Patches of pictures, cut out by a pattern, in a trained net."""
    seed(1)
    net = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), nn.Linear(48, 8),
        Rearrange("b n d -> b (n d)"), nn.Linear(128, 3),
    ).to(device)  # fmt: skip
    x = torch.randn(4, 3, 16, 16).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    told = train(net, optimizer, lambda x: net(x).pow(2).mean(), [(x,)] * STEPS)
    return [
        *told, rearrange(x, "b c h w -> (b h) (w c)"), reduce(x, "b c (h 2) w -> b c h", "max"),
        repeat(x, "b c h w -> b c (2 h) w"), torch.einsum("bchw,bchv->bwv", x, x),
    ]  # fmt: skip


@case
def diffusers_denoising(device):
    """A small U-Net tells the noise, and makes pictures of it by two schedulers."""
    from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel

    seed(2)
    net = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4,
        block_out_channels=(8, 16), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4,
    ).to(device)  # fmt: skip
    noising = DDPMScheduler(num_train_timesteps=20)
    clean, noise = torch.rand(4, 1, 8, 8).to(device), torch.randn(4, 1, 8, 8).to(device)
    times = torch.tensor([1, 5, 9, 15]).to(device)
    noisy = noising.add_noise(clean, noise, times)
    net.eval()
    told = [noisy, mse_loss(net(noisy, times).sample, noise).detach()]
    for scheduler in (DDIMScheduler(num_train_timesteps=20), noising):
        scheduler.set_timesteps(4, device=device)
        x = noise
        seed(3)
        for t in scheduler.timesteps:
            with torch.no_grad(), on_device(device):
                x = scheduler.step(net(x, t).sample, t, x).prev_sample
        told.append(x)
    return told


@case
def peft_adapters(device):
    """Low-rank adapters in a small language model: trained, merged, saved and loaded again."""
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    def base():
        seed(4)
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2,
                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        )  # fmt: skip

    net = get_peft_model(base(), LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"]))
    net = net.to(device).train()
    ids = torch.randint(0, 64, (3, 12)).to(device)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2)
    told = train(net, optimizer, lambda x: net(input_ids=x, labels=x).loss, [(ids,)] * STEPS)
    net.eval()
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        net.save_pretrained(directory)
        again = PeftModel.from_pretrained(base().to(device), directory).eval()
        same = torch.equal(again(input_ids=ids).logits, net(input_ids=ids).logits)
        merged = net.merge_and_unload()
        return [*told, same, merged(input_ids=ids).logits]


@case
def x_transformers_decoder(device):
    """A decoder with rotary positions learns to go on, and does."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    seed(5)
    net = TransformerWrapper(
        num_tokens=32, max_seq_len=32,
        attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True),
    )  # fmt: skip
    net = AutoregressiveWrapper(net).to(device)
    ids = torch.randint(0, 32, (3, 16)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    told = train(net, optimizer, net, [(ids,)] * STEPS)
    return [*told, net.generate(ids[:, :4], 6, temperature=0.0)]


@case
def vector_quantization(device):
    """Code books: by clusters, residual, and without one."""
    from vector_quantize_pytorch import FSQ, ResidualVQ, VectorQuantize

    told = []
    for make in (
        lambda: VectorQuantize(dim=8, codebook_size=16, kmeans_init=False),
        lambda: ResidualVQ(dim=8, num_quantizers=2, codebook_size=16),
        lambda: FSQ([5, 5, 5], dim=8),
    ):
        seed(6)
        net = make().to(device).train()
        x = torch.randn(2, 10, 8).to(device).requires_grad_()
        with on_device(device):
            for _ in range(STEPS):
                out, codes, *losses = net(x)
                (out.pow(2).sum() + sum(loss.sum() for loss in losses)).backward()
        told += [out, codes, *losses, x.grad, *state_of(net)]
    return told


@case
def safetensors_files(device):
    """Files of tensors: written from the device, read onto it, whole, in part and into a model."""
    from safetensors import safe_open
    from safetensors.torch import load, load_file, load_model, save, save_file, save_model

    seed(7)
    kept = {
        "floats": torch.randn(3, 4), "halves": torch.randn(5).bfloat16(),
        "numbers": torch.arange(7), "one": torch.tensor(2.5), "flags": torch.tensor([True, False]),
    }  # fmt: skip
    net = nn.Linear(4, 2).to(device)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "file.safetensors")
        save_file({name: tensor.to(device) for name, tensor in kept.items()}, file)
        told = []
        for backend in ("mmap", "pread"):
            found = load_file(file, device=device, backend=backend)
            assert {tensor.device.type for tensor in found.values()} == {device}
            told += [found[name] for name in sorted(found)]
        with safe_open(file, "pt", device=device) as opened:
            told += [opened.get_tensor("floats"), opened.get_slice("floats")[1:, :2]]
        save_model(net, directory + "/model")
        again = nn.Linear(4, 2).to(device)
        load_model(again, directory + "/model", device=device)
    return [*told, *state_of(again), load(save({"x": again.weight.detach()}))["x"]]
