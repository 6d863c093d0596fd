"""The order of the samples that Isthmus documents in docs/exactness.md, so that all programs see the same batches."""

import hashlib

import torch


class Order(torch.utils.data.Sampler):
    """Sampler that stands for `shuffle=True`: each epoch has an order of its own."""

    def __init__(self, count, epoch=0, seed=0):
        self.count, self.epoch, self.seed = count, epoch, seed

    def __len__(self):
        return self.count

    def __iter__(self):
        parts = (self.seed, "order", self.epoch)
        texts = [f"{'s' if isinstance(part, str) else 'i'}{len(str(part))}:{part}" for part in parts]
        seed = int.from_bytes(hashlib.blake2b("".join(texts).encode(), digest_size=8).digest(), "big") >> 1
        self.epoch += 1
        return iter(torch.randperm(self.count, generator=torch.Generator().manual_seed(seed)).tolist())
