"""Sets of numbers that are only iterated; some tell their place, and some of these wrongly."""

import random
from copy import copy
from itertools import chain

import torch
from torch import Tensor
from torch.utils.data import IterableDataset


class Noisy(IterableDataset[tuple[Tensor, int]]):
    """Numbers in an order that is drawn, with noise."""

    def __init__(self, count: int = 30) -> None:
        self.count = count

    def __iter__(self):
        for number in torch.randperm(self.count).tolist():
            yield torch.tensor([random.random(), torch.rand(()).item()]), number


class InEpochs(Noisy):
    """An order of the epoch alone, as of a set of Hugging Face."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = list(range(self.count))
        random.Random(self.epoch).shuffle(order)
        for number in order:
            yield torch.tensor([float(number)]), number


class Breaking(Noisy):
    """Breaks off after some numbers."""

    def __iter__(self):
        yield from ((torch.zeros(1), number) for number in range(9))
        raise OSError("the line is cut")


class Once:
    """Goes on where it was left."""

    def __init__(self):
        self.numbers = iter(range(99))

    def __iter__(self):
        return ((torch.tensor([float(number)]), number) for number in self.numbers)


class Counting(Noisy):
    """Numbers in an order of the epoch, with noise, and how many were drawn."""

    def __init__(self, count=30):
        super().__init__(count)
        self.epoch = 0
        self.drawn = []

    def __deepcopy__(self, memo):
        other = copy(self)  # which counts with this one
        memo[id(self)] = other
        return other

    def set_epoch(self, epoch):
        self.epoch = epoch

    def order(self):
        order = list(range(self.count))
        random.Random(self.epoch).shuffle(order)
        return order

    def sample(self, number):
        self.drawn.append(number)
        return torch.tensor([random.random(), torch.rand(()).item()]), number


class ByDataset(Counting):
    """Tells its place, and begins each iteration of an epoch at the one that it has loaded, as a set of Hugging Face."""

    def __init__(self, count=30):
        super().__init__(count)
        self.begins = self.at = None

    def __iter__(self):
        begins = self.begins["at"] if self.begins and self.begins["epoch"] == self.epoch else 0
        for place, number in enumerate(self.order()[begins:], begins):
            self.at = place + 1
            yield self.sample(number)

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.begins = state


class OnceLoaded(ByDataset):
    """Forgets the place once it has begun there, as a set for torchdata's loader."""

    def __iter__(self):
        found = super().__iter__()
        first = next(found, None)
        self.begins = None
        return iter(()) if first is None else chain([first], found)


class ByIterator(Counting):
    """Has an iterator that tells its place."""

    def __iter__(self):
        return Places(self, self.order())


class Drawn(ByIterator):
    """Tells nothing of the order that it draws."""

    def order(self):
        return torch.randperm(self.count).tolist()


class Places:
    """The iterator of `ByIterator`."""

    def __init__(self, of, order):
        self.of, self.order, self.place = of, order, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.place == len(self.order):
            raise StopIteration
        self.place += 1
        return self.of.sample(self.order[self.place - 1])

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Itself(Counting):
    """Is its own iterator."""

    place = 0

    def __iter__(self):
        self.place = 0
        return self

    def __next__(self):
        if self.place == self.count:
            raise StopIteration
        self.place += 1
        return self.sample(self.order()[self.place - 1])

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Buffered(ByDataset):
    """Loses what it has read ahead, as a shuffled set of Hugging Face."""

    def __iter__(self):
        begins = self.begins["at"] if self.begins else 0
        held = []
        for place, number in enumerate(self.order()[begins:], begins):
            self.at = place + 1
            held.append(number)
            if len(held) > 2:
                yield self.sample(held.pop(0))


class Told(ByDataset):
    """Tells whatever it is given."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch, "more": self.state}


class Broken(ByDataset):
    """Cannot take a state."""

    def load_state_dict(self, state):
        raise KeyError(state["shard"])
