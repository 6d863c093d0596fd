"""A placement in few numbers: for figures, and for those who choose among two workers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deployment:
    """How much of the model is on the device, and how late and how packed tensors travel."""

    version: int = 0
    """The placement's."""
    edge_blocks: int = 0
    """How many blocks the device runs or owns, 0 to L. Of two workers on one cut, it is the cut."""
    staleness: int = 0
    """The limit K."""
    codec: str = ""
    """The codec of the features."""
    downlink_codec: str = ""
    """The codec of the error gradients."""
