"""Text by a small decoder, a word at a time: keys and values are kept, and grow with each word."""

import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

__all__ = ["PERIOD", "Program"]

_WORDS, _WIDTH, _HEADS, _LAYERS = 500, 64, 4, 2
_LONGEST = 48
#: the word that ends a text
_END = 0
PERIOD = _LONGEST


class _Layer(nn.Module):
    """Attention over what was said so far, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.wide, self.narrow = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(
        self, x: torch.Tensor, kept: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        shape = 1, -1, _HEADS, _WIDTH // _HEADS
        q, k, v = self.attend(layer_norm(x, (_WIDTH,))).chunk(3, dim=-1)
        q, k, v = (each.view(shape).transpose(1, 2) for each in (q, k, v))
        if kept is not None:
            k, v = torch.cat([kept[0], k], dim=2), torch.cat([kept[1], v], dim=2)
        seen = scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(1, 1, _WIDTH))
        return x + self.narrow(gelu(self.wide(layer_norm(x, (_WIDTH,))))), (k, v)


class Program:
    """One word; the next text begins when this one is over."""

    def __init__(self, device: str) -> None:
        self._words = nn.Embedding(_WORDS, _WIDTH).to(device)
        self._places = nn.Embedding(_LONGEST, _WIDTH).to(device)
        self._layers = nn.ModuleList(_Layer() for _ in range(_LAYERS)).to(device)
        self._device = device
        self._begin()

    def _begin(self) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * _LAYERS
        self._place = 0
        self._word = torch.tensor([[1]], device=self._device)

    @torch.no_grad()
    def step(self) -> torch.Tensor:
        place = torch.tensor([[self._place]], device=self._device)
        x = self._words(self._word) + self._places(place)
        for k, layer in enumerate(self._layers):
            x, self._kept[k] = layer(x, self._kept[k])
        logits = layer_norm(x, (_WIDTH,)) @ self._words.weight.T
        self._word = logits[:, -1].argmax(-1, keepdim=True)
        self._place += 1
        if self._word.item() == _END or self._place == _LONGEST:
            self._begin()
        return logits.max()
