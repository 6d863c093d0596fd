"""The trained model of a configuration, with a dataset to compute on. It is built as a run builds it, and dials nobody."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from edge_agent.config import EdgeConfig
from edge_agent.data import EvaluationLoader
from edge_agent.data_config import ORDERS, DataConfig, DatasetConfig
from edge_agent.deployment_config import DeploymentConfig
from edge_agent.experiment.workload import Workload
from edge_agent.group_config import GroupSection
from edge_agent.sessions.finished import MODEL
from edge_agent.training_config import StartFromConfig
from shared.errors import ConfigError
from shared.model.chain import Chain
from shared.model.features import Features, call_module
from shared.model.inputs import Inputs, by_place, features_of_inputs
from shared.training.block_failures import failures_of
from shared.training.device import prepare_process
from shared.training.precision import computing
from shared.training.recipe import Recipe


@contextmanager
def trained(config: EdgeConfig, weights: Path | None, dataset: DatasetConfig | None) -> Iterator[Workload]:
    """Build the model with these weights, or those of `output.directory`, and a dataset, or `data.test`.

    Both sets of samples of the workload are that one. Raises ConfigError, DataError or ModelError.
    """
    named_by = "--weights"
    if weights is None:
        if config.output.directory is None:
            raise ConfigError(
                "output.directory is left out, so nothing says where the trained weights are; give --weights"
            )
        weights, named_by = config.output.directory / MODEL, "output.directory"
    if (dataset := dataset or config.data.test) is None:
        raise ConfigError("data.test is left out, so there are no samples to compute on; give --data")
    prepare_process(config.compute.threads)
    workload = Workload(
        config.model_copy(
            update={
                "data": _all_of(dataset, config.data),
                "training": config.training.model_copy(
                    update={"start_from": StartFromConfig(path=weights), "epochs": 1, "accumulate_batches": 1}
                ),
                "deployment": DeploymentConfig(),  # its codecs and caches are of steps, of which there are none
                "group": GroupSection(),
            }
        ),
        weights_named_by=named_by,
    )
    with closing(workload), torch.no_grad():
        workload.chain.module.eval()
        yield workload


def outputs_of(chain: Chain, recipe: Recipe, inputs: Inputs) -> Features:
    """Return what the whole module returns for a batch, in the precision of the run. Raises ModelError where it fails."""
    with failures_of("", *chain.blocks), computing(recipe.base_precision):
        return call_module(by_place(chain.module, chain.input_names), features_of_inputs(inputs))


def _all_of(dataset: DatasetConfig, data: DataConfig) -> DataConfig:
    steps = data.steps_per_epoch if dataset == data.train else None
    every = {"drop_last": False, "shard": None, "steps_per_epoch": steps, **dict.fromkeys(ORDERS)}
    return data.model_copy(update={"train": dataset, "test": dataset, **every})


def samples_of(workload: Workload) -> EvaluationLoader:
    """Return all samples, in their order."""
    assert workload.evaluation is not None, "trained() has set a test set"
    return workload.evaluation
