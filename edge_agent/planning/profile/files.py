"""A profile from a file of any of its schemas."""

from collections.abc import Callable, Mapping
from pathlib import Path

from edge_agent.planning.profile import chain_v1, pair_v1, tiers_v1, v2
from edge_agent.planning.profile.profile import Profile
from edge_agent.planning.profile.reader import shown
from shared.errors import PlanError
from shared.files.json_file import read_json

_PARSERS: Mapping[str, Callable[[Mapping[str, object], str], Profile]] = {
    v2.SCHEMA: v2.parse,
    pair_v1.SCHEMA: pair_v1.parse,
    chain_v1.SCHEMA: chain_v1.parse,
    tiers_v1.SCHEMA: tiers_v1.parse,
}


def load_profile(path: Path) -> Profile:
    """Read the profile in a file. PlanError when it cannot be read or has an error."""
    return parse_profile(read_json(path, "profile", PlanError), str(path))


def parse_profile(decoded: object, where: str) -> Profile:
    """Read the profile in a decoded JSON object. `where` begins every error."""
    if not isinstance(decoded, Mapping):
        raise PlanError(f"{where}: a profile is a JSON object, not {shown(decoded)}")
    schema = decoded.get("schema")
    if not isinstance(schema, str) or schema not in _PARSERS:
        known = ", ".join(f'"{name}"' for name in _PARSERS)
        raise PlanError(f"{where}: schema is {shown(schema)}; this version reads {known}")
    return _PARSERS[schema](decoded, where)
