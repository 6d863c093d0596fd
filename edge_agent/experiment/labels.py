"""Refusal of labels that are no class of the model, before the first step where a first batch or a table in memory has them."""

from collections.abc import Collection

from edge_agent.data import Classes
from edge_agent.experiment.workload import Workload
from shared.model.features import specs_of
from shared.training.losses import class_count, label_tensors


def expect_classes(workload: Workload, keys: Collection[str] = ("data.train", "data.test")) -> None:
    """Refuse such labels of the first batches, and have each loader refuse those that it reads later. Raises DataError.

    keys: of the data sets whose labels are used.
    """
    loaders = {"data.train": workload.loader, "data.test": workload.evaluation}
    for key, labels in workload.first_labels.items():
        if key not in keys:
            continue
        (spec, *_) = specs_of(label_tensors(labels))
        count, loader = class_count(workload.recipe.loss, workload.chain.outputs_beside(spec)), loaders[key]
        if count is None or loader is None:
            continue
        classes = Classes(key, count)
        if workload.loader.skipping is None:  # other samples may stand for some of them
            classes.check(labels, range(len(label_tensors(labels)[0])))
        loader.expect(classes)
