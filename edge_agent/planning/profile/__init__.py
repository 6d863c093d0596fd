"""Measurements of a model on its workers and links: one type, and its files.

`isthmus.profile/v2` is written, and for three tiers `isthmus.tiers/v1`. Files of pairs (`isthmus.profile/v1`) and of chains
(`isthmus.chain/v1`) are read too.
"""

from edge_agent.planning.profile.files import load_profile, parse_profile
from edge_agent.planning.profile.pair_v1 import NO_OVERHEAD, pair_profile
from edge_agent.planning.profile.profile import (
    DEFAULT_CODEC_FAMILY,
    Hop,
    MeasuredLink,
    MessageSeconds,
    Profile,
    WorkerProfile,
    no_times,
)
from edge_agent.planning.profile.tiers_v1 import SCHEMA as TIERS_SCHEMA
from edge_agent.planning.profile.tiers_v1 import TIERS, with_batch_size
from edge_agent.planning.profile.v2 import SCHEMA, profile_to_json

__all__ = [
    "DEFAULT_CODEC_FAMILY",
    "NO_OVERHEAD",
    "SCHEMA",
    "TIERS",
    "TIERS_SCHEMA",
    "Hop",
    "MeasuredLink",
    "MessageSeconds",
    "Profile",
    "WorkerProfile",
    "load_profile",
    "no_times",
    "pair_profile",
    "parse_profile",
    "profile_to_json",
    "with_batch_size",
]
