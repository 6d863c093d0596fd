import hashlib

import torch
from noisy import Readings, make_net
from torch.nn.functional import cross_entropy


def seed_of(*parts):
    texts = [f"{'s' if isinstance(part, str) else 'i'}{len(str(part))}:{part}" for part in parts]
    return int.from_bytes(hashlib.blake2b("".join(texts).encode(), digest_size=8).digest(), "big") >> 1


torch.set_num_threads(1)
torch.manual_seed(seed_of(7, "weights"))
net, data, test = make_net(), Readings(seed=0, count=500), Readings(seed=1, count=150)
optimizer, step = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), 0
for epoch in range(4):
    order = torch.randperm(500, generator=torch.Generator().manual_seed(seed_of(7, "order", epoch)))
    for batch in order[: 500 // 32 * 32].split(32):
        value = torch.stack([data[index][0] for index in batch.tolist()])
        for index, block in enumerate(net.train()):
            torch.manual_seed(seed_of(7, step, index))
            value = block(value)
        cross_entropy(value, torch.tensor([data[index][1] for index in batch.tolist()])).backward()
        for block in (block for block in net if list(block.parameters())):
            torch.nn.utils.clip_grad_norm_(block.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
weights, loss, right = net.state_dict(), 0.0, 0
for begin in range(0, 150, 32):
    samples = [test[index] for index in range(begin, min(begin + 32, 150))]
    labels = torch.tensor([label for _, label in samples])
    with torch.no_grad():
        output = net.eval()(torch.stack([value for value, _ in samples]))
    loss += float(cross_entropy(output, labels)) * len(samples)
    right += int((output.argmax(1) == labels).sum())
test_loss, accuracy = loss / 150, right / 150
print(test_loss, accuracy)
