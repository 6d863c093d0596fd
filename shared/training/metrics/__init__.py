"""Metrics of the evaluations: numbers that are computed of the outputs and labels of all samples."""

from shared.training.metrics.tally import Judged, Metrics, Tally, load_metrics

__all__ = ["Judged", "Metrics", "Tally", "load_metrics"]
