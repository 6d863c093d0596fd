"""Times that a device takes to encode and to decode: a line over the bytes of a tensor (paper 000, Fig. 11)."""

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from edge_agent.config import EdgeConfig
from edge_agent.planning.measurements import FLOAT32_BITS
from shared.codec import FeedbackMode, codec_by_name, compensate, compression_error
from shared.registry import codec_of_bits
from shared.training.measure import timed

ENCODE_SIZES_BYTES = (64 * 1024, 256 * 1024, 1 << 20, 4 << 20, 16 << 20)
"""Float32 sizes that the linear fits are made from."""
_USUAL_BITS = 8
Fit = dict[str, Any]
"""A linear fit over bytes, as it stands in the profile."""


def narrow_codec(config: EdgeConfig) -> str:
    """The codec whose times stand for all of fewer than 32 bits: the widest of them that the engine may choose."""
    narrow = [bits for bits in config.engine.bits if bits < FLOAT32_BITS]
    return codec_of_bits(max(narrow, default=_USUAL_BITS), config.deployment.first_codec)


def codec_fits(name: str, repeats: int, config: EdgeConfig) -> tuple[Fit, Fit]:
    """Seconds of encoding and of decoding with the codec of that name, each as a line over the bytes of the float32 tensor.

    What error feedback needs counts as encoding: it is what fewer bits cost the edge.
    """
    codec = codec_by_name(name)
    feedback = FeedbackMode(config.deployment.feedback)

    def encode_tensor(tensor: torch.Tensor) -> None:
        encoded = codec.encode(tensor)
        if feedback is not FeedbackMode.OFF:
            compensate(tensor, compression_error(codec.decode(encoded), tensor), config.data.batch_size, feedback)

    encode: list[list[float]] = []
    decode: list[list[float]] = []
    for size in ENCODE_SIZES_BYTES:
        tensor = torch.randn(size // 4, generator=torch.Generator().manual_seed(0)).relu_()
        encoded = codec.encode(tensor)
        encode.append(timed(partial(encode_tensor, tensor), repeats))
        decode.append(timed(partial(codec.decode, encoded), repeats))
    return codec_line(encode), codec_line(decode)


def codec_line(seconds_by_size: Sequence[Sequence[float]]) -> Fit:
    """The line through the mean times at `ENCODE_SIZES_BYTES`, and the spread at each."""
    means = [statistics.fmean(seconds) for seconds in seconds_by_size]  # not medians: all repeats count
    # Weighted so that each size counts alike: without it the largest would decide the constant too.
    slope, constant = np.polyfit(ENCODE_SIZES_BYTES, means, 1, w=1 / np.array(means))
    return {
        "seconds_per_byte": max(float(slope), 0.0),
        "seconds": max(float(constant), 0.0),
        "spread_seconds": [spread(seconds) for seconds in seconds_by_size],
    }


def spread(seconds: Sequence[float] | None) -> float | None:
    """The distance of the quartiles."""
    if seconds is None or len(seconds) < 2:
        return None
    low, _, high = statistics.quantiles(seconds, n=4)
    return high - low
