"""The models of the accuracy bench: a Llama, a ResNet-50 and a vision transformer, plain PyTorch.

Why it exists: step times and peak memory of real GPUs are only comparable with those of emulated
ones if the model is the same to the last temporary. What is allocated when, and how long it lives,
is part of this file's face: reordering two lines of a forward pass changes the recorded peaks.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

LLAMAS = {  # vocabulary, width, layers, heads, key/value heads, feed-forward width
    "160m": (32000, 768, 12, 12, 12, 2048),
    "1b": (128256, 2048, 16, 32, 8, 8192),
    "3b": (128256, 3072, 28, 24, 8, 8192),
    "8b": (128256, 4096, 32, 32, 8, 14336),
    "13b": (32000, 5120, 40, 40, 40, 13824),
}


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.head_width = width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        # -1 heads: tensor parallelism leaves each rank a part of them
        query = self.wq(x).view(batch, length, -1, self.head_width)
        key = self.wk(x).view(batch, length, -1, self.head_width)
        value = self.wv(x).view(batch, length, -1, self.head_width)

        def rotate(heads):
            first, second = heads.float().chunk(2, -1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).type_as(
                heads
            )

        query, key = rotate(query).transpose(1, 2), rotate(key).transpose(1, 2)
        grouped = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(
            query, key, value.transpose(1, 2), is_causal=True, enable_gqa=grouped
        )
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width, heads, kv_heads, inner):
        super().__init__()
        self.attn, self.ffn = Attention(width, heads, kv_heads), FeedForward(width, inner)
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.n1(x), cos, sin)
        return x + self.ffn(self.n2(x))


class Llama(nn.Module):
    """All of a Llama, or stage `stage` of `stages` of it: the first embeds, the last normalises and
    predicts."""

    def __init__(
        self, vocabulary, width, layers, heads, kv_heads, inner, length, stage=0, stages=1
    ):
        super().__init__()
        self.length, self.head_width = length, width // heads
        mine = layers * (stage + 1) // stages - layers * stage // stages
        last = stage == stages - 1
        self.emb = nn.Embedding(vocabulary, width) if stage == 0 else None
        self.layers = nn.ModuleList([Block(width, heads, kv_heads, inner) for _ in range(mine)])
        self.norm = nn.RMSNorm(width) if last else None
        self.out = nn.Linear(width, vocabulary, bias=False) if last else None
        self.register_buffer("cos", torch.empty(length, 1, self.head_width // 2), persistent=False)
        self.register_buffer("sin", torch.empty(length, 1, self.head_width // 2), persistent=False)

    @torch.no_grad()
    def initialise(self):
        """Fills parameters and rotation tables on the device where they have been put."""
        for parameter in self.parameters():
            parameter.normal_(0, 0.02)
        exponents = (
            torch.arange(0, self.head_width, 2, device=self.cos.device).float() / self.head_width
        )
        frequencies = 1.0 / (500000.0**exponents)
        angles = torch.outer(
            torch.arange(self.length, device=self.cos.device).float(), frequencies
        )[:, None]
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())

    def forward(self, x):
        h = self.emb(x) if self.emb is not None else x
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.out(self.norm(h)) if self.out is not None else h


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions round a shortcut; the stride sits in the 3x3 (the common "v1.5"
    variant)."""

    def __init__(self, inputs, inner, stride):
        super().__init__()
        outputs = inner * 4
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = (
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
            nn.BatchNorm2d(inner),
        )
        self.conv3, self.bn3 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """ResNet-50 for 224 x 224 images and 1,000 classes (He et al. 2015, table 1)."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, inputs = [], 64
        for inner, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for index in range(count):
                blocks.append(Bottleneck(inputs, inner, stride if index == 0 else 1))
                inputs = inner * 4
        self.blocks, self.pool, self.fc = (
            nn.Sequential(*blocks),
            nn.AdaptiveAvgPool2d(1),
            nn.Linear(2048, 1000),
        )

    def forward(self, x):
        return self.fc(self.pool(self.blocks(self.stem(x))).flatten(1))


class VisionBlock(nn.Module):
    """Attention and feed-forward with LayerNorm, biases and GELU."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        query, key, value = (
            self.qkv(self.n1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        x = x + self.out(
            F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        )
        return x + self.down(F.gelu(self.up(self.n2(x))))


class VisionTransformer(nn.Module):
    """ViT-B/16 for 224 x 224 images and 1,000 classes (Dosovitskiy et al. 2020, table 1)."""

    def __init__(self, width=768, layers=12, heads=12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first, self.places = (
            nn.Parameter(torch.zeros(1, 1, width)),
            nn.Parameter(torch.zeros(1, 197, width)),
        )
        self.blocks = nn.Sequential(*(VisionBlock(width, heads) for _ in range(layers)))
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
        return self.fc(self.norm(self.blocks(x))[:, 0])
