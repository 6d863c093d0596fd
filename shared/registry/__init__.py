"""The names that a configuration, a recipe or a peer may use: codecs, losses, metrics, optimizers, precisions and
backward policies.

This folder knows the facts of each that need no run, and the place of its code, as `package.module:name`. So a
configuration is judged, and a plan is made, without torch.
"""

from shared.registry.codecs import (
    BY_SAMPLE,
    CODECS,
    SINCE,
    CodecSpec,
    bit_widths,
    by_sample,
    codec_bits,
    codec_names,
    codec_of_bits,
    codec_spec,
)
from shared.registry.losses import LOSSES, Argument, Labels, LossConfig, LossSpec
from shared.registry.metrics import METRICS, MetricConfig
from shared.registry.optimizers import OPTIMIZERS, OptimizerConfig, OptimizerSettings, OptimizerSpec
from shared.registry.policies import POLICIES
from shared.registry.precisions import Precision, Precisions

__all__ = [
    "BY_SAMPLE",
    "CODECS",
    "LOSSES",
    "METRICS",
    "OPTIMIZERS",
    "POLICIES",
    "SINCE",
    "Argument",
    "CodecSpec",
    "Labels",
    "LossConfig",
    "LossSpec",
    "MetricConfig",
    "OptimizerConfig",
    "OptimizerSettings",
    "OptimizerSpec",
    "Precision",
    "Precisions",
    "bit_widths",
    "by_sample",
    "codec_bits",
    "codec_names",
    "codec_of_bits",
    "codec_spec",
]
