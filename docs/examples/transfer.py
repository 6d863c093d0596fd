import numpy as np
from torch import nn


def labelled(file, split):
    """The first 40 pictures of a file for training, the others for the test."""
    arrays = np.load(file)
    samples = [(picture, int(label)) for picture, label in zip(arrays["pictures"], arrays["labels"], strict=True)]
    return samples[:40] if split == "train" else samples[40:]


def layer(channels, more, stride, *then):
    return nn.Sequential(nn.Conv2d(channels, more, 3, stride, padding=1), nn.ReLU(), *then)


def transfer_net(classes):
    body = nn.Sequential(layer(1, 16, 1), layer(16, 32, 2), layer(32, 64, 2, nn.Flatten()))
    head = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, classes))
    return nn.Sequential(*body, head)
