"""The CIFAR variant of ResNet18 (section 5, appendix)."""

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x_bchw: Tensor) -> Tensor:
        """Add the block's change to its input."""
        y_bchw = self.bn1(self.conv1(x_bchw))
        y_bchw = F.relu(y_bchw)
        y_bchw = self.bn2(self.conv2(y_bchw))
        return F.relu(y_bchw + self.shortcut(x_bchw))


class ResNet(nn.Module):
    """A 3x3 stem without pooling, four stages of two blocks, and a linear head."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(
            BasicBlock(64, 64, 1),
            BasicBlock(64, 64, 1),
        )
        self.layer2 = nn.Sequential(
            BasicBlock(64, 128, 2),
            BasicBlock(128, 128, 1),
        )
        self.layer3 = nn.Sequential(
            BasicBlock(128, 256, 2),
            BasicBlock(256, 256, 1),
        )
        self.layer4 = nn.Sequential(
            BasicBlock(256, 512, 2),
            BasicBlock(512, 512, 1),
        )
        self.linear = nn.Linear(512, num_classes)

    def forward(self, x_bchw: Tensor) -> Tensor:
        """Return class scores for images of any size (the paper crops 24x24)."""
        y_bchw = self.bn1(self.conv1(x_bchw))
        y_bchw = F.relu(y_bchw)
        y_bchw = self.layer1(y_bchw)
        y_bchw = self.layer2(y_bchw)
        y_bchw = self.layer3(y_bchw)
        y_bchw = self.layer4(y_bchw)
        features_bc = F.adaptive_avg_pool2d(y_bchw, 1).flatten(1)
        scores: Tensor = self.linear(features_bc)
        return scores


def cifar_resnet18(num_classes: int = 10) -> nn.Module:
    """Return ResNet18 for small images."""
    return ResNet(num_classes)
