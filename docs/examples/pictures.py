from collections import OrderedDict

from torch import nn


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
