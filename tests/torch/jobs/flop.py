"""A small model like Llama, with every kind of attention, recomputation, and a convolution. Prints what
PyTorch's own counter says of its last step."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

WIDTH, HEADS, SEQUENCE, BATCH = 512, 8, 384, 2
BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)


class Layer(torch.nn.Module):
    def __init__(self, backend, causal):
        super().__init__()
        self.backend, self.causal = backend, causal
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 1408, bias=False)
        self.down = torch.nn.Linear(1408, WIDTH, bias=False)

    def forward(self, x):
        shape = (BATCH, SEQUENCE, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        with sdpa_kernel(self.backend):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(BATCH, SEQUENCE, WIDTH))
        return x + self.down(F.silu(self.up(x)))


layers = [Layer(backend, causal) for backend in BACKENDS for causal in (False, True)]
model = torch.nn.ModuleList(layers).to("cuda", torch.bfloat16)
image = torch.nn.Conv2d(8, 16, 3, padding=1).to("cuda", torch.bfloat16)
single = torch.nn.Linear(96, 160, bias=False, device="cuda")
parameters = [*model.parameters(), *image.parameters(), *single.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)


def step():
    x = torch.zeros(BATCH, SEQUENCE, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for number, layer in enumerate(model):
        # a layer that is computed again counts again
        x = checkpoint(layer, x, use_reentrant=False) if number % 3 == 0 else layer(x)
    y = image(torch.zeros(4, 8, 32, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True))
    z = single(torch.zeros(48, 96, device="cuda"))
    (x.float().sum() + y.float().sum() + z.sum()).backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(4):
    with FlopCounterMode(display=False) as counter:
        step()
print("COUNTED", counter.get_total_flops())
