"""Models of Hugging Face's transformers, tiny and made in code, trained and asked to write."""

import torch
from cases import case, on_device, seed, train
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

STEPS = 3
BATCH = 4


def trained(net, batches, device):
    """AdamW for a few steps, dropout and all; losses, parameters and optimizer state."""
    net = net.to(device).train()
    batches = [{name: t.to(device) for name, t in batch.items()} for batch in batches]
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    seed(7)
    with on_device(device):
        return net, train(net, optimizer, lambda b: net(**b).loss, [(b,) for b in batches])


def tokens(length, most=60):
    """Token ids above the special ones."""
    return torch.randint(5, most, (BATCH, length))


def _bert(**more):
    return BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=32, **more,
    )  # fmt: skip


@case
def bert(device):
    """Classifies padded sentences."""
    net = BertForSequenceClassification(_bert(num_labels=3))
    mask = torch.ones(BATCH, 12, dtype=torch.long)
    mask[1, 7:] = mask[3, 9:] = 0
    batches = [
        {"input_ids": tokens(12), "attention_mask": mask, "labels": torch.randint(0, 3, (BATCH,))}
        for _ in range(STEPS)
    ]
    return trained(net, batches, device)[1]


@case
def bert_with_eager_attention(device):
    """As above, by the attention that is written out."""
    net = BertForSequenceClassification(_bert(num_labels=3, attn_implementation="eager"))
    batches = [
        {"input_ids": tokens(12), "labels": torch.randint(0, 3, (BATCH,))} for _ in range(STEPS)
    ]
    return trained(net, batches, device)[1]


@case
def gpt2(device):
    """Learns to go on, then goes on: greedily and by chance, with a growing cache."""
    net = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=48, n_embd=32, n_layer=2, n_head=4,
                   bos_token_id=1, eos_token_id=2, pad_token_id=0)
    )  # fmt: skip
    batches = [{"input_ids": ids, "labels": ids} for ids in (tokens(16) for _ in range(STEPS))]
    net, told = trained(net, batches, device)
    net.eval()
    start = batches[0]["input_ids"][:2, :5].to(device)
    mask = torch.ones_like(start)
    greedy = net.generate(start, attention_mask=mask, max_new_tokens=8, do_sample=False)
    seed(11)
    with on_device(device):
        chance = net.generate(
            start, attention_mask=mask, max_new_tokens=8, do_sample=True, top_k=20
        )
    return [*told, greedy, chance]


@case
def vit(device):
    """Classifies small pictures."""
    net = ViTForImageClassification(
        ViTConfig(image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2,
                  num_attention_heads=4, intermediate_size=48, num_labels=5)
    )  # fmt: skip
    batches = [
        {"pixel_values": torch.randn(BATCH, 3, 16, 16), "labels": torch.randint(0, 5, (BATCH,))}
        for _ in range(STEPS)
    ]
    return trained(net, batches, device)[1]


@case
def whisper(device):
    """From frames of sound to tokens; then writes what it hears."""
    net = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=64, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
            decoder_ffn_dim=48, max_source_positions=20, max_target_positions=24, pad_token_id=0,
            bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )  # fmt: skip
    batches = [
        {"input_features": torch.randn(BATCH, 8, 40), "labels": tokens(10)} for _ in range(STEPS)
    ]
    net, told = trained(net, batches, device)
    net.eval()
    heard = net.generate(
        batches[0]["input_features"].to(device), max_new_tokens=6, do_sample=False,
        return_timestamps=False,
    )  # fmt: skip
    return [*told, heard]


@case
def t5(device):
    """From one sentence to another; then by beams."""
    net = T5ForConditionalGeneration(
        T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                 pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    )  # fmt: skip
    batches = [{"input_ids": tokens(12), "labels": tokens(8)} for _ in range(STEPS)]
    net, told = trained(net, batches, device)
    net.eval()
    written = net.generate(
        batches[0]["input_ids"].to(device), max_new_tokens=6, num_beams=3, do_sample=False
    )
    return [*told, written]


@case
def bert_in_mixed_precision(device):
    """Autocast to bfloat16, whose cast lists are the device's own: only that it learns."""
    seed(3)
    net = BertForSequenceClassification(_bert(num_labels=2)).to(device).train()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    ids = tokens(12)
    labels = (ids[:, 0] % 2).to(device)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = net(input_ids=ids.to(device), labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses[-1] < losses[0], str(loss.dtype)]
