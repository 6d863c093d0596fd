"""`edge-agent schedule`: when a member of a group pulls parameters and pushes gradients.

Parse, call edge_agent.planning.schedules, print. An error is a PlanError; the app makes one line and an exit code of it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_agent.commands.plans.plan_options import LINK, PROFILE, AsJson, RoundTrip
from edge_agent.commands.schedules.options import GROUP, Members
from edge_agent.planner_names import FLOW, STRATEGY_NAMES
from isthmus_entry_points import importing
from shared.commands.options import one_of
from shared.errors import PlanError

if TYPE_CHECKING:
    from edge_agent.planning.schedules import Layers


def schedule(
    layers: Annotated[
        Path | None, typer.Option("--layers", help="Bytes and seconds of each layer, a JSON file (isthmus.profile/v3).")
    ] = None,
    profile: Annotated[Path | None, PROFILE] = None,
    uplink: Annotated[
        str | None, typer.Option(help="Rate from a member to the trainer, as 10mbit.", rich_help_panel=LINK)
    ] = None,
    downlink: Annotated[
        str | None, typer.Option(help="Rate from the trainer to a member, as 50mbit.", rich_help_panel=LINK)
    ] = None,
    round_trip: RoundTrip = None,
    members: Members = 1,
    strategy: Annotated[
        str, typer.Option(help="Strategy of the exchange.", rich_help_panel=GROUP, **one_of(STRATEGY_NAMES))
    ] = FLOW,
    as_json: AsJson = False,
) -> None:
    """Schedule the exchange of parameters between the members of a group and its trainer."""
    with importing("edge-agent"):
        from edge_agent.commands.schedules.printing import print_schedule
        from edge_agent.planning.schedules import STRATEGIES, bound_seconds, load_layers

    if (layers is None) == (profile is None):
        raise typer.BadParameter("give --layers, or --profile with --uplink and --downlink")
    if layers is not None:
        given = {"--uplink": uplink, "--downlink": downlink, "--round-trip": round_trip}
        if others := [option for option, value in given.items() if value is not None]:
            raise PlanError(f"{others[0]} goes with --profile; the seconds of --layers are those of its own link")
        table = load_layers(layers)
    else:
        assert profile is not None
        table = _profiled(profile, uplink, downlink, round_trip)
    shared = table.among(members)
    print_schedule(STRATEGIES[strategy](shared), bound_seconds(shared), as_json=as_json)


def _profiled(profile: Path, uplink: str | None, downlink: str | None, round_trip: str | None) -> "Layers":
    from edge_agent.commands.plans.link_plan import read_link
    from edge_agent.planning import load_profile
    from edge_agent.planning.schedules import layers_of

    if uplink is None or downlink is None:
        raise typer.BadParameter("give --uplink and --downlink, the rates of the link between a member and the trainer")
    loaded = load_profile(profile)
    return layers_of(loaded, read_link(uplink, downlink, round_trip, loaded))
