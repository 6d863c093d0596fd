"""The agent's control service: what an operator sees of a run and does to it."""

from edge_agent.control.controlled import Controlled
from edge_agent.control.pins import Pinning
from edge_agent.control.service import serving_control

__all__ = ["Controlled", "Pinning", "serving_control"]
