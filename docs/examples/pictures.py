from collections import OrderedDict
from pathlib import Path

import numpy as np
from PIL import Image
from torch import nn


class Pictures:
    """Grey pictures of one size, in a folder for each class."""

    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*/*.png"))
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        pixels = np.array(Image.open(file).convert("L"), dtype=np.float32)
        return pixels[None] / 128 - 1, self.classes.index(file.parent.name)


def layer(channels, more, *then):
    return nn.Sequential(nn.Conv2d(channels, more, 3, padding=1, bias=False), nn.BatchNorm2d(more), nn.ReLU(), *then)


def picture_net(classes):
    return nn.Sequential(
        OrderedDict(
            edges=layer(1, 16),
            strokes=layer(16, 16, nn.MaxPool2d(2)),
            shapes=layer(16, 32),
            parts=layer(32, 64, nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            answer=nn.Linear(64, classes),
        )
    )
