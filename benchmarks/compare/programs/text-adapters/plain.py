"""The training in plain PyTorch."""

import torch
from net import Texts, make_net
from order import Order
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

EPOCHS, RATE = 3, 5e-3

train_set = Texts("train.csv")
train = DataLoader(train_set, batch_size=32, sampler=Order(len(train_set)), drop_last=True)
test = DataLoader(Texts("test.csv"), batch_size=32)
net = make_net()
optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, EPOCHS * len(train))
for epoch in range(EPOCHS):
    net.train()
    for values, labels in train:
        optimizer.zero_grad()
        cross_entropy(net(**values).logits, labels).backward()
        optimizer.step()
        schedule.step()
    net.eval()
    with torch.no_grad():
        right = sum(int((net(**values).logits.argmax(1) == labels).sum()) for values, labels in test)
    print(f"epoch {epoch + 1}: accuracy {right / len(test.dataset):.4f}")
torch.save(net.state_dict(), "net.pth")
