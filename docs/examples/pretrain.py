import torch
from sklearn.datasets import load_digits
from torch import nn

from transfer import transfer_net

torch.manual_seed(0)
digits = load_digits()
pictures = torch.from_numpy(digits.images[:1000, None]).float() / 8 - 1
labels = torch.from_numpy(digits.target[:1000])
net = transfer_net(classes=10)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for _ in range(8):
    for batch in torch.randperm(1000).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(pictures[batch]), labels[batch]).backward()
        optimizer.step()
torch.save(net.state_dict(), "begin.pth")
