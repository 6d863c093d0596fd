"""Measurements of a model on its workers and links: the type that planning uses, and its file (schema `isthmus.profile/v3`)."""

from edge_agent.planning.profile.document import SCHEMA, TIERS, ProfileDocument
from edge_agent.planning.profile.files import (
    load_document,
    load_profile,
    parse_document,
    parse_profile,
    profile_to_json,
)
from edge_agent.planning.profile.pair import EDGE, NO_OVERHEAD, TRAINER, pair_profile
from edge_agent.planning.profile.profile import (
    NO_MESSAGE,
    Hop,
    MeasuredLink,
    MessageSeconds,
    Profile,
    WorkerProfile,
    no_times,
    with_batch_size,
)

__all__ = [
    "EDGE",
    "NO_MESSAGE",
    "NO_OVERHEAD",
    "SCHEMA",
    "TIERS",
    "TRAINER",
    "Hop",
    "MeasuredLink",
    "MessageSeconds",
    "Profile",
    "ProfileDocument",
    "WorkerProfile",
    "load_document",
    "load_profile",
    "no_times",
    "pair_profile",
    "parse_document",
    "parse_profile",
    "profile_to_json",
    "with_batch_size",
]
