"""The cloud trainer: runs the last blocks of many edges' models."""

from cloud_trainer.config import TrainerConfig
from cloud_trainer.server import TrainerServer

__all__ = ["TrainerConfig", "TrainerServer"]
