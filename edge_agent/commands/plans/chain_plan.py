"""`edge-agent plan` of a chain: the partition of a chain of workers on the command line."""

import json
from itertools import pairwise

import typer

from edge_agent.commands.plans.plan_options import ANY
from edge_agent.planning import Found, Profile, Question, SearchSpace, best_order, conditions_of, loads_of, most_exact


def print_chain_plan(chain: Profile, space: SearchSpace, order: str, *, as_json: bool) -> None:
    """Plan and print. PlanError for what cannot be planned."""
    question = Question(chain, space)
    ordered = best_order(question) if order == ANY else chain
    chosen = _Chosen(ordered, most_exact(Question(ordered, space)))
    notes = notes_on(chain, chosen)
    typer.echo(json.dumps(chosen.fields(notes)) if as_json else chosen.described(notes))


class _Chosen:
    """A plan, and the seconds of its parts."""

    def __init__(self, chain: Profile, found: Found) -> None:
        self.layout, self.names, self._found = found.layout, chain.names, found
        at, loads = conditions_of(chain), loads_of(chain, [found.layout])
        places = [chain.names.index(worker) for worker in found.layout.workers]
        busy, carried = loads.worker_seconds(at), loads.direction_seconds(at)
        self._stages = [float(busy[place][0]) for place in places]
        """Seconds of each worker that has blocks."""
        self._links = [(float(carried[near, far][0]), float(carried[far, near][0])) for near, far in pairwise(places)]
        """Seconds of the links between these, up and down."""

    def fields(self, notes: list[str]) -> dict[str, object]:
        """Return the plan as its JSON object."""
        return {
            "order": list(self.names),
            "workers": list(self.layout.workers),
            "cuts": list(self.layout.cuts),
            "bits": list(self.layout.bits),
            "staleness": self.layout.staleness,
            "seconds_per_step": self._found.seconds_per_step,
            "stage_seconds": self._stages,
            "link_seconds": [list(both) for both in self._links],
            "notes": notes,
        }

    def described(self, notes: list[str]) -> str:
        """Return the plan in words: a line a stage and a line a link, in their order."""
        layout = self.layout
        lines = [f"{layout}", f"  {self._found.seconds_per_step:.4g} s a step"]
        for stage, tile in enumerate(layout.tiles):
            lines.append(f"  {tile.worker}: blocks [{tile.first}, {tile.stop}), {self._stages[stage]:.4g} s")
            if stage < len(self._links):
                up, down = self._links[stage]
                lines.append(f"    {layout.bits[stage]} bits up {up:.4g} s, down {down:.4g} s")
        return "\n".join([*lines, *(f"  note: {note}" for note in notes)])


def notes_on(chain: Profile, chosen: _Chosen) -> list[str]:
    """List the assumptions of the plan."""
    idle = [name for name in chosen.names if name not in chosen.layout.workers]
    notes = [f"{', '.join(idle)} would make no step quicker, and so gets no blocks"] if idle else []
    if chain.links_stay and chosen.names != chain.names:
        notes.append(
            "the file has no links_between, so the links were taken to stay in their places whoever stands at their ends"
        )
    if chain.min_bits is None and chosen.layout.widths:
        notes.append("nothing was calibrated: nobody has measured what so few bits cost in accuracy")
    return notes
