"""Codecs turn tensors into bytes and back; error feedback corrects a gradient for what a lossy codec changed."""

from shared.codec.base import Codec, CodecSpec, Encoded
from shared.codec.buffers import aligned_buffer
from shared.codec.error_feedback import FeedbackMode, compensate, compression_error
from shared.codec.layout import check_layout, most_span_bytes
from shared.codec.noise import seed_stochastic_rounding
from shared.codec.registry import (
    bit_widths,
    codec_bits,
    codec_by_name,
    codec_family,
    codec_names,
    codec_of_bits,
    is_lossy,
)

__all__ = [
    "Codec",
    "CodecSpec",
    "Encoded",
    "FeedbackMode",
    "aligned_buffer",
    "bit_widths",
    "check_layout",
    "codec_bits",
    "codec_by_name",
    "codec_family",
    "codec_names",
    "codec_of_bits",
    "compensate",
    "compression_error",
    "is_lossy",
    "most_span_bytes",
    "seed_stochastic_rounding",
]
