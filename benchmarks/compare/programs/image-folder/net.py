"""The network and the pictures, the same file in every program."""

import timm
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

READ = transforms.Compose([transforms.Grayscale(), transforms.Resize(32), transforms.ToTensor()])


def make_net(classes):
    torch.manual_seed(1)
    return timm.create_model("resnet10t", num_classes=classes, in_chans=1)


def pictures(folder):
    return ImageFolder(folder, READ)
