"""The network in two halves, divided by hand."""

import torch
from net import make_net
from torch import nn

RATE, BATCH = 3e-3, 32


def front_half():
    net = make_net(10)
    return nn.Sequential(net.conv1, net.bn1, net.act1, net.maxpool)


def back_half():
    net = make_net(10)
    return nn.Sequential(net.layer1, net.layer2, net.layer3, net.layer4, net.global_pool, net.fc)


def recipe(half, steps):
    optimizer = torch.optim.AdamW(half.parameters(), lr=RATE)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
