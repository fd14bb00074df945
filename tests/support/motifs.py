"""Small models, one for each kind of structure a plan must handle, with the expected families."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fjord.models import cifar_resnet18, femnist_cnn, shakespeare_rnn


@dataclass(frozen=True)
class Motif:
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    families: dict[str, int] | None
    """Units of each family by name; None where another test says more."""
    freeze: tuple[str, ...] = ()


def random_tensor(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def images(channels: int = 3, size: int = 8) -> tuple[Tensor, ...]:
    return (random_tensor(3, channels, size, size),)


def vectors(size: int = 6) -> tuple[Tensor, ...]:
    return (random_tensor(3, size),)


def sequences(size: int = 6) -> tuple[Tensor, ...]:
    return (random_tensor(3, 5, size),)


def tokens(vocabulary: int = 12) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randint(0, vocabulary, (3, 5), generator=generator),)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 10, 3, padding=1)
        self.bn = nn.BatchNorm2d(10)
        self.inner = nn.Conv2d(10, 15, 3, padding=1)
        self.back = nn.Conv2d(15, 10, 3, padding=1)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.stem(x))
        y = self.back(F.relu(self.inner(x)))
        y += x
        return self.head(F.relu(y).mean((2, 3)))


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 10, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(10)
        self.grow1 = nn.Conv2d(10, 5, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(15)
        self.grow2 = nn.Conv2d(15, 5, 3, padding=1)
        self.head = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([x, self.grow1(F.relu(self.norm1(x)))], 1)
        x = torch.cat([x, self.grow2(F.relu(self.norm2(x)))], 1)
        return self.head(x.mean((2, 3)))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(3, 20, 1)
        self.depthwise = nn.Conv2d(20, 20, 3, padding=1, groups=20)
        self.squeeze = nn.Linear(20, 5)
        self.excite = nn.Linear(5, 20)
        self.head = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.depthwise(self.expand(x)))
        squeezed = F.relu(self.squeeze(x.mean((2, 3))))
        gate = torch.sigmoid(self.excite(squeezed))
        return self.head((x * gate[:, :, None, None]).mean((2, 3)))


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 20, 3, padding=1)
        self.norm = nn.GroupNorm(5, 20)
        self.grouped = nn.Conv2d(20, 20, 3, padding=1, groups=5)
        self.whole = nn.GroupNorm(1, 20)
        self.head = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.whole(self.grouped(x))
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 10)
        self.rnn = kind(10, 15, batch_first=True, **options)
        directions = 2 if options.get("bidirectional") else 1
        outputs = options.get("proj_size") or 15
        self.head = nn.Linear(outputs * directions, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(x))[0])


class CellLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 10)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.cell.hidden_size)
        c = torch.zeros_like(h)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        return self.head(h)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 10)
        self.inner = nn.Linear(10, 10)
        self.head = nn.Linear(10, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.embedding(x)
        return self.head(y + torch.tanh(self.inner(y)))


class Attention(nn.Module):
    """Written with `F.scaled_dot_product_attention`; pre-norm, learned positions, class token."""

    def __init__(self, heads: int = 5, inside: int = 4, channels: int = 10) -> None:
        super().__init__()
        self.inside = inside
        self.embed = nn.Linear(6, channels)
        self.token = nn.Parameter(torch.randn(1, 1, channels))
        self.positions = nn.Parameter(torch.randn(1, 6, channels))
        self.norm = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * heads * inside)
        self.project = nn.Linear(heads * inside, channels)
        self.head = nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        token = self.token.expand(x.shape[0], -1, -1)
        x = torch.cat([token, x], 1) + self.positions
        b, n, _ = x.shape
        qkv = self.qkv(self.norm(x)).view(b, n, 3, -1, self.inside)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head((x + self.project(y))[:, 0])


class Encoder(nn.Module):
    """Written with `nn.MultiheadAttention`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 20)
        self.norm = nn.LayerNorm(20)
        self.attention = nn.MultiheadAttention(20, 5, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.Linear(30, 20))
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head(x + self.mlp(x))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(3, 10, 3, 2, 1)
        self.down2 = nn.Conv2d(10, 20, 3, 2, 1)
        self.up1 = nn.ConvTranspose2d(20, 10, 2, 2)
        self.up2 = nn.ConvTranspose2d(20, 5, 2, 2)
        self.out = nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(a))
        joined = torch.cat([F.relu(self.up1(b)), a], 1)
        return self.out(F.relu(self.up2(joined)))


class HardCoded(nn.Module):
    """Sizes written in `forward`: only the graph can be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 20, 3, padding=1)
        self.inner = nn.Linear(20, 10)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).view(x.shape[0], 20, -1).mean(-1)
        return self.head(F.relu(self.inner(y)))


class RMS(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.norm = nn.RMSNorm(10)
        self.gate = nn.Linear(10, 30)
        self.head = nn.Linear(15, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.glu(self.gate(self.norm(self.first(x)))))


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.shared = nn.Linear(10, 10)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = F.relu(self.first(x))
        y = F.relu(self.shared(y))
        y = F.relu(self.shared(y))
        return {"scores": self.head(y)}


class PaddedShortcut(nn.Module):
    """The parameter-free shortcut of early ResNets: channels padded with zeros on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 10, 3, padding=1)
        self.conv = nn.Conv2d(10, 20, 3, 2, 1)
        self.head = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.conv(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 5, 5))
        return self.head(F.relu(y).mean((2, 3)))


class Stepped(nn.Module):
    """Every second unit is taken by a slice with a step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 20)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        return self.head(y[:, ::2] + y[:, 1::2])


def channels_last() -> nn.Module:
    class Flatten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 10, 3)
            self.head = nn.Linear(10 * 36, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.conv(x)).permute(0, 2, 3, 1).flatten(1))

    return Flatten()


MOTIFS: dict[str, Motif] = {
    "paper cnn": Motif(femnist_cnn, lambda: images(1, 28), {"0.weight[0]": 10, "3.weight[0]": 20}),
    "paper resnet18": Motif(cifar_resnet18, lambda: images(3, 16), None),
    "paper rnn": Motif(
        shakespeare_rnn, lambda: tokens(90), {"lstm.weight_ih_l0[0]": 128}, freeze=("embedding",)
    ),
    "residual add": Motif(Residual, images, {"stem.weight[0]": 10, "inner.weight[0]": 15}),
    "concatenation": Motif(
        Dense, images, {"stem.weight[0]": 10, "grow1.weight[0]": 5, "grow2.weight[0]": 5}
    ),
    "depthwise, squeeze-excite": Motif(
        Depthwise, images, {"expand.weight[0]": 20, "squeeze.weight[0]": 5}
    ),
    "grouped, group norm": Motif(Grouped, images, {"stem.weight[0]": 5}),
    "lstm, two layers": Motif(
        lambda: Recurrent(nn.LSTM, num_layers=2),
        tokens,
        {"embedding.weight[1]": 10, "rnn.weight_ih_l0[0]": 15},
    ),
    "lstm, both ways": Motif(
        lambda: Recurrent(nn.LSTM, bidirectional=True),
        tokens,
        {"embedding.weight[1]": 10, "rnn.weight_ih_l0[0]": 15},
    ),
    "lstm, projected": Motif(
        lambda: Recurrent(nn.LSTM, proj_size=5),
        tokens,
        {"embedding.weight[1]": 10, "rnn.weight_ih_l0[0]": 15, "rnn.weight_hr_l0[0]": 5},
    ),
    "gru": Motif(
        lambda: Recurrent(nn.GRU), tokens, {"embedding.weight[1]": 10, "rnn.weight_ih_l0[0]": 15}
    ),
    "rnn": Motif(
        lambda: Recurrent(nn.RNN), tokens, {"embedding.weight[1]": 10, "rnn.weight_ih_l0[0]": 15}
    ),
    "lstm cell": Motif(CellLoop, sequences, {"cell.weight_ih[0]": 10}),
    "tied weights": Motif(Tied, tokens, {"embedding.weight[1]": 10}),
    "attention": Motif(Attention, sequences, {"embed.weight[0]": 10, "qkv.weight[0]": 5}),
    "multi-head attention": Motif(
        Encoder,
        sequences,
        {"embed.weight[0]": 20, "attention.in_proj_weight[0]": 5, "mlp.0.weight[0]": 30},
    ),
    "u-net": Motif(
        UNet,
        images,
        {"down1.weight[0]": 10, "down2.weight[0]": 20, "up1.weight[1]": 10, "up2.weight[1]": 5},
    ),
    "sizes in forward": Motif(HardCoded, images, {"conv.weight[0]": 20, "inner.weight[0]": 10}),
    "rms norm, glu": Motif(RMS, vectors, {"first.weight[0]": 10, "gate.weight[0]": 15}),
    "padded shortcut": Motif(
        PaddedShortcut, images, {"stem.weight[0]": 10, "conv.weight[0]": 5, "conv.weight[0]@15": 5}
    ),
    "slice with a step": Motif(Stepped, vectors, {"first.weight[0]": 10}),
    "module used twice": Motif(Reused, vectors, {"first.weight[0]": 10}),
    "channels-last flatten": Motif(channels_last, images, {"conv.weight[0]": 10}),
}
