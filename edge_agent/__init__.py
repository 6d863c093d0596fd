"""The edge agent: keeps the data, runs the first blocks, and trains with the cloud's help."""

from edge_agent.config import EdgeConfig
from edge_agent.run import TrainingListener, run_training, train
from edge_agent.training.result import Summary, TrainingResult

__all__ = ["EdgeConfig", "Summary", "TrainingListener", "TrainingResult", "run_training", "train"]
