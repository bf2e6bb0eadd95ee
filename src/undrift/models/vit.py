"""The vision transformer (Dosovitskiy et al., 2021), its tensors named as in the published ImageNet weights."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.models.common import image


class Attention(nn.Module):
    """Multi-head self-attention, written out because PyTorch's fused kernels cannot be batched over clients."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.reset_parameters()
        self.out_proj = nn.Linear(width, width)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.in_proj_bias)

    def forward(self, x: Tensor) -> Tensor:  # [B, S, D]
        projected = F.linear(x, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (3, self.heads, -1))
        query, key, value = projected.transpose(1, 3).unbind(2)  # [B, heads, S, d] each
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        mixed: Tensor = self.out_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return mixed


class Layer(nn.Module):
    """Attention and an MLP, each with layer normalisation before it and a residual connection."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            OrderedDict(linear_1=nn.Linear(width, hidden), gelu=nn.GELU(), linear_2=nn.Linear(hidden, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Encoder(nn.Module):
    def __init__(self, positions: int, *, depth: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, positions, width))
        self.reset_parameters()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number in range(depth):
            layers[f"encoder_layer_{number}"] = Layer(width, heads, hidden)
        self.layers = nn.Sequential(layers)
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.pos_embedding, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.ln(self.layers(x + self.pos_embedding))
        return out


class VisionTransformer(nn.Module):
    """A class token and embedded patches through an encoder, and a classifier on the class token; no dropout."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, *, patch: int, depth: int, width: int, heads: int, hidden: int
    ) -> None:
        super().__init__()
        channels, *sides = shape
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.conv_proj = nn.Conv2d(channels, width, patch, patch)
        positions = 1 + math.prod(side // patch for side in sides)
        self.encoder = Encoder(positions, depth=depth, width=width, heads=heads, hidden=hidden)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.class_token)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight)
                nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)  # [B, S, D]
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], 1)
        out: Tensor = self.heads(self.encoder(tokens)[:, 0])
        return out


def vit_b32(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ViT-B/32 (Dosovitskiy et al., 2021), FedPGVC's backbone; 88 224 232 parameters on 3×224×224, 1000 classes.

    Sides are multiples of 32. Published weights are for 224×224, to which `with_head(..., side=224)` enlarges images.
    """
    sized = image("vit-b32", shape, 32)
    if sized[1] % 32 or sized[2] % 32:
        raise ValueError(f"model 'vit-b32' needs images whose sides are multiples of 32, got {shape}")
    return VisionTransformer(sized, classes, patch=32, depth=12, width=768, heads=12, hidden=3072)
