"""Simulated training on a device that moves among trainers (paper 003)."""

from shared.planning.choice.handovers import Network
from shared.planning.moving.moves import Handover, MoveRun, Span, simulate_moves
from shared.planning.moving.paths import Path, load_path
from shared.planning.moving.sites import Site, load_sites
from shared.planning.moving.world import CLOUD, World

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
