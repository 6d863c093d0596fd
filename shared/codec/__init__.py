"""Codecs turn tensors into bytes and back. Error feedback corrects a gradient for the loss of a codec."""

from shared.codec.base import Codec, Encoded, codec_by_name
from shared.codec.buffers import aligned_buffer
from shared.codec.error_feedback import FeedbackMode, KeptError, compensate, compression_error
from shared.codec.floating import row_of_bytes
from shared.codec.layout import check_layout, most_span_bytes
from shared.codec.quantize import seed_stochastic_rounding

__all__ = [
    "Codec",
    "Encoded",
    "FeedbackMode",
    "KeptError",
    "aligned_buffer",
    "check_layout",
    "codec_by_name",
    "compensate",
    "compression_error",
    "most_span_bytes",
    "row_of_bytes",
    "seed_stochastic_rounding",
]
