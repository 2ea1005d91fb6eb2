"""ResNet-18 with the stem for small images: 3x3, stride 1, no max pooling."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cabafl.models.width import scaled


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut (1x1 convolution where the shape changes)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the sum of both branches."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)), inplace=True)))
        return F.relu(inner + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """Four stages of two blocks (64, 128, 256, 512 channels, times ``width``). Feature: ``block4``, averaged over
    positions.

    Convolutions start from Kaiming-normal weights (fan-out, ReLU), as in the authors' program; batch norm from weight 1
    and bias 0, which is torch's default.
    """

    def __init__(self, channels: int, classes: int, padding: int = 0, width: float = 1.0) -> None:
        super().__init__()
        a, b, c, d = (scaled(64, width), scaled(128, width), scaled(256, width), scaled(512, width))
        self.pad = nn.ZeroPad2d(padding)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, a, 3, padding=1, bias=False), nn.BatchNorm2d(a), nn.ReLU(inplace=True)
        )
        self.block1 = nn.Sequential(Block(a, a, 1), Block(a, a, 1))
        self.block2 = nn.Sequential(Block(a, b, 2), Block(b, b, 1))
        self.block3 = nn.Sequential(Block(b, c, 2), Block(c, c, 1))
        self.block4 = nn.Sequential(Block(c, d, 2), Block(d, d, 1))
        self.out = nn.Linear(d, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Class scores (batch, classes)."""
        x = self.block4(self.block3(self.block2(self.block1(self.stem(self.pad(x))))))
        scores: Tensor = self.out(x.mean(dim=(2, 3)))
        return scores
