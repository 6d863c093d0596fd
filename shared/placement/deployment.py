"""What two workers on one cut have of a placement, for those who choose and show no more than that."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where the model is cut and how its two parts talk."""

    version: int = 0
    """The placement's."""
    cut: int = 0
    """How many blocks run on the device, 1 to L."""
    staleness: int = 0
    """The limit K."""
    codec: str = ""
    """The codec of the features."""
    downlink_codec: str = ""
    """The codec of the error gradients."""
