"""What the statuses of both sides show alike."""

from shared.placement import Deployment
from shared.registry import codec_bits
from shared.wire.isthmus.v1.control_pb2 import DeploymentStatus


def deployment_status(deployment: Deployment, blocks: int) -> DeploymentStatus:
    """A deployment that is in force. blocks: of the whole model."""
    return DeploymentStatus(
        edge_blocks=deployment.edge_blocks,
        blocks=blocks,
        staleness_limit=deployment.staleness,
        codec=deployment.codec,
        bits=codec_bits(deployment.codec),
        downlink_codec=deployment.downlink_codec,
        downlink_bits=codec_bits(deployment.downlink_codec),
    )
