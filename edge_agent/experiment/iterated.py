"""Refusal of the keys that a training set cannot have that is only iterated, whose samples have no numbers."""

from edge_agent.data import Dataset
from edge_agent.data.stream import is_iterated
from edge_agent.data_config import ORDERS, DataConfig
from edge_agent.deployment_config import DeploymentConfig
from shared.errors import ConfigError


def check_iterated(dataset: Dataset, data: DataConfig, deployment: DeploymentConfig) -> None:
    """Refuse `data.steps_per_epoch` where there is a length, its lack where there is none, and what needs numbers of samples.

    Raises ConfigError.
    """
    name = type(dataset).__name__
    if not is_iterated(dataset):
        if hasattr(dataset, "__next__") and not hasattr(dataset, "__getitem__"):
            raise ConfigError(f"{name} can be iterated once only; return an object whose __iter__ begins again")
        if data.steps_per_epoch is not None and hasattr(dataset, "__len__"):
            raise ConfigError(
                f"data.steps_per_epoch is set, and {name} has a length, so an epoch has all its samples; leave it out"
            )
        return
    if data.steps_per_epoch is None:
        raise ConfigError(f"{name} can only be iterated; set data.steps_per_epoch to the steps of an epoch")
    asked = {f"data.{key}": getattr(data, key) for key in (*ORDERS, "shard")}
    asked["data.on_error"] = data.on_error if data.on_error != "raise" else None
    asked["deployment.recall"] = deployment.recall or None
    asked["deployment.changes"] = deployment.changes
    if given := [key for key, value in asked.items() if value is not None]:
        raise ConfigError(
            f"{given[0]} is set, and samples of {name} have no numbers, as it can only be iterated; leave it out"
        )
    if data.workers > 1:
        raise ConfigError(
            f"data.workers is {data.workers}, and {name} can only be iterated, by one process; set it to 0 or 1"
        )
