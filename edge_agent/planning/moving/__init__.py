"""Simulated training on a device that moves among trainers (paper 003)."""

from edge_agent.planning.choice.handovers import Network
from edge_agent.planning.moving.moves import Handover, MoveRun, Span, simulate_moves
from edge_agent.planning.moving.paths import Path, load_path
from edge_agent.planning.moving.sites import Site, load_sites
from edge_agent.planning.moving.world import CLOUD, World

__all__ = [
    "CLOUD",
    "Handover",
    "MoveRun",
    "Network",
    "Path",
    "Site",
    "Span",
    "World",
    "load_path",
    "load_sites",
    "simulate_moves",
]
