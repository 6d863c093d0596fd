"""Simulated training on a device that moves among trainers (paper 003)."""

from benchmarks.rivals.moving.moves import MOVE_POLICY_NAMES, Handover, MoveRun, Span, simulate_moves
from benchmarks.rivals.moving.paths import Path, load_path
from benchmarks.rivals.moving.sites import Site, load_sites
from benchmarks.rivals.moving.world import CLOUD, Backbone, World

__all__ = [
    "CLOUD",
    "MOVE_POLICY_NAMES",
    "Backbone",
    "Handover",
    "MoveRun",
    "Path",
    "Site",
    "Span",
    "World",
    "load_path",
    "load_sites",
    "simulate_moves",
]
