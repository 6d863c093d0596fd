"""Rivals of the planners, where a package with some is installed.

A package declares them by Python entry points of one group, and none of its code is imported before it is asked for. Each is a
mapping by name: `pair` of planners of two workers, `pair-runs` and `chain-runs` of contestants over traces.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from shared.errors import PlanError

GROUP = "isthmus.planners"
PAIR, PAIR_RUNS, CHAIN_RUNS = "pair", "pair-runs", "chain-runs"
BENCHMARKS = "the benchmarks of a checkout, which are not installed here (pip install ./benchmarks)"


def installed(name: str) -> dict[str, Any]:
    """Return the members of all mappings that packages declare under a name. PlanError for one that cannot be imported."""
    return {key: member for point in entry_points(group=GROUP, name=name) for key, member in _loaded(point).items()}


def there_are(names: list[str], rivals: dict[str, Any]) -> str:
    """Return the end of a refusal: names that are known, and where others come from if there are no rivals."""
    return f"there are {', '.join(names)}" + ("" if rivals else f"; others come with {BENCHMARKS}")


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except ImportError as error:
        raise PlanError(f"{point.value} is installed for comparison and cannot be imported: {error}") from error
