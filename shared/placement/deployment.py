"""A placement in few numbers: for figures, and for choosers among two workers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deployment:
    """The device's share of the model, and the lateness and codecs of tensors that travel."""

    version: int = 0
    """The placement's."""
    edge_blocks: int = 0
    """Number of blocks that the device runs or owns, 0 to L. Of two workers on one cut, it is the cut."""
    staleness: int = 0
    """The limit K."""
    codec: str = ""
    """The codec of the features."""
    downlink_codec: str = ""
    """The codec of the error gradients."""
