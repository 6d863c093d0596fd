"""The samples: datasets that work out of the box, and the loader that turns any dataset into batches."""

from edge_agent.data.cifar import cifar10
from edge_agent.data.classes import Classes
from edge_agent.data.collate import Collate
from edge_agent.data.first import first_batch
from edge_agent.data.handwritten import digits
from edge_agent.data.idx import fashion_mnist
from edge_agent.data.loader import Batch, BatchLoader, EvaluationLoader, Reading, evaluation_batches
from edge_agent.data.samples import Dataset
from edge_agent.data.tensors import TensorDataset

__all__ = [
    "Batch",
    "BatchLoader",
    "Classes",
    "Collate",
    "Dataset",
    "EvaluationLoader",
    "Reading",
    "TensorDataset",
    "cifar10",
    "digits",
    "evaluation_batches",
    "fashion_mnist",
    "first_batch",
]
