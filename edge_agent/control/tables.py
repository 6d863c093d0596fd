"""Answers of the agent's control service for a person: a table, or a line."""

from collections.abc import Iterable
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from rich.markup import escape
from rich.table import Column, Table

from edge_agent.control.trend import Trend
from shared.bounds import AGENT
from shared.control.formatting import session_column, size, time_text, word
from shared.wire.isthmus.v1 import control_pb2 as pb

_STATE_STYLES = {
    pb.RUN_STATE_TRAINING: "bold green",
    pb.RUN_STATE_EVALUATING: "bold green",
    pb.RUN_STATE_PAUSED: "bold yellow",
    pb.RUN_STATE_AWAY: "bold red",
    pb.RUN_STATE_STOPPING: "bold yellow",
}
"""Green is at work, yellow stands still at an operator's request, red waits for another part."""


def status_table(status: pb.EdgeStatus, trend: Trend | None = None) -> Table:
    """Show the whole status, in the order in which a batch travels. trend: earlier figures, for a reader who keeps looking."""
    table = Table(title=f"session {status.session_id or '-'}", show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    today = status.deployment
    style = _STATE_STYLES.get(status.state, "bold")
    table.add_row("state", f"[{style}]{_state(status)}[/], {time_text(status.running)}{_left(status)}")
    share = status.step / status.total_steps if status.total_steps else 0.0
    table.add_row("step", f"{status.step} of {status.total_steps} ({share:.0%}){_each(status)}")
    speed = f"{status.samples_per_second:.0f} samples/s" if status.HasField("samples_per_second") else "-"
    table.add_row("speed", speed + (f"  [dim]{trend.speed}[/]" if trend else ""))
    table.add_row("trainer", f"{status.trainer}{'' if status.attached else ', [red]not attached[/]'}")
    for reason in status.waits_because:
        table.add_row("", f"[red]{escape(reason)}[/]")
    table.add_row("model", status.model)
    moving = f", {today.wanted_edge_blocks} wanted" if today.HasField("wanted_edge_blocks") else ""
    table.add_row("blocks", f"{today.edge_blocks} of {today.blocks} here{moving}{_held_cuts(status)}")
    table.add_row("staleness", f"{status.staleness}, at most {today.staleness_limit}{_held(status, 'staleness')}")
    table.add_row(
        "codecs",
        f"up {today.codec} ({today.bits} bits), down {today.downlink_codec} ({today.downlink_bits} bits)"
        f"{_held(status, 'bits')}",
    )
    if status.chosen_by:
        table.add_row("chosen by", status.chosen_by)
    if status.refused_change:
        table.add_row("refused", f"[red]{escape(status.refused_change)}[/]")
    if status.planner:
        table.add_row("planner", f"{status.planner}{_predicted(status)}{_measuring(status)}")
    if status.HasField("engine_change"):
        table.add_row("changed", escape(_change(status.engine_change)))
    if status.candidates:
        ranked = (f"{one.name} {one.seconds_per_step * 1e3:.1f} ms" for one in status.candidates)
        table.add_row("candidates", ", ".join(ranked))
    for field, name in (
        ("edge", "T1 edge"),
        ("uplink", "T2 uplink"),
        ("cloud", "T3 cloud"),
        ("downlink", "T4 downlink"),
    ):
        table.add_row(name, _phase(status.phases, field))
    for worker in status.workers:
        table.add_row(f"on {worker.name}", _worker(worker))
    queues = status.queues
    table.add_row(
        "waiting",
        f"{queues.compute} batches to begin, {queues.send} to send, {queues.apply} steps to go on with; "
        f"{status.batches_in_flight} in flight",
    )
    table.add_row("link", f"up {_rate(status, 'uplink')}, down {_rate(status, 'downlink')}{_round_trip(status)}")
    for link in status.links:
        if AGENT not in (link.sender, link.receiver):
            known = f"{link.bits_per_second / 1e6:.1f} Mbit/s" if link.HasField("bits_per_second") else "not known yet"
            table.add_row("", f"{link.sender} to {link.receiver} {known}")
    table.add_row("sent", f"{size(status.bytes_up)} up, {size(status.bytes_down)} down")
    loss = f"{status.loss:.4g}" if status.HasField("loss") else "-"
    table.add_row("loss", loss + (f"  [dim]{trend.loss}[/]" if trend else ""))
    table.add_row("accuracy", f"{status.accuracy:.2%}" if status.HasField("accuracy") else "-")
    for name, value in sorted(status.metrics.items()):
        table.add_row(escape(name), f"{value:.4g}")
    table.add_row("checkpoint", _checkpoint(status))
    table.add_row("log level", word(pb.LogLevel.Name(status.log_level), "LOG_LEVEL_"))
    return table


def status_line(status: pb.EdgeStatus) -> str:
    """The most of it on one line."""
    today = status.deployment
    loss = f", loss {status.loss:.4g}" if status.HasField("loss") else ""
    accuracy = f", accuracy {status.accuracy:.1%}" if status.HasField("accuracy") else ""
    return (
        f"{_state(status)}: step {status.step} of {status.total_steps}{_each(status)}, "
        f"{today.edge_blocks} of {today.blocks} blocks here, K {today.staleness_limit}, {today.bits} bits{loss}{accuracy}"
    )


def sessions_table(sessions: Iterable[pb.EdgeSessionStatus]) -> Table:
    """The unfinished sessions of this device."""
    states = {
        pb.EDGE_SESSION_STATE_RUNNING: "running",
        pb.EDGE_SESSION_STATE_RESUMABLE: "can be resumed",
        pb.EDGE_SESSION_STATE_NOTHING_KEPT: "nothing kept yet",
    }
    table = Table(session_column(), Column("run", overflow="fold"), "state")  # few columns: a terminal has eighty
    for session in sessions:
        step = str(session.checkpoint_step) if session.HasField("checkpoint_step") else "-"
        began = session.began.ToDatetime().isoformat(" ", "seconds")
        run = f"{session.model} with {session.trainer}, began {began}"
        table.add_row(session.session_id, run, f"{states[session.state]}, step {step} of {session.total_steps}")
    return table


def trainers_table(trainers: Iterable[pb.TrainerListing]) -> Table:
    """The configured trainers."""
    table = Table("trainer", "address", "role", "blocks", "a step", Column("answers", overflow="fold"))
    for trainer in trainers:
        role = word(pb.TrainerRole.Name(trainer.role), "TRAINER_ROLE_")
        answers = "yes" if trainer.reachable else f"no: {escape(trainer.reason)}"
        blocks = ", ".join(trainer.blocks) or "none"
        step = f"{trainer.seconds_per_step * 1e3:.1f} ms" if trainer.HasField("seconds_per_step") else "-"
        table.add_row(trainer.name, trainer.address, role, blocks, step, answers)
    return table


def _worker(worker: pb.WorkerStatus) -> str:
    if worker.left_out:
        return "left out: it was away for too long"
    computes = f", {worker.compute_seconds * 1e3:.1f} ms a step" if worker.HasField("compute_seconds") else ""
    return f"blocks {', '.join(worker.blocks) or 'none'}, {worker.step} steps done{computes}"


def _known(message: Message) -> dict[str, Any]:
    """The fields that were filled in."""
    return {field.name: value for field, value in message.ListFields()}


def _state(status: pb.EdgeStatus) -> str:
    return word(pb.RunState.Name(status.state), "RUN_STATE_")


def _left(status: pb.EdgeStatus) -> str:
    if not status.HasField("seconds_per_step") or status.state == pb.RUN_STATE_ENDED:
        return ""
    left = Duration()
    left.FromNanoseconds(int((status.total_steps - status.step) * status.seconds_per_step * 1e9))
    return f", about {time_text(left)} left"


def _each(status: pb.EdgeStatus) -> str:
    return f", {status.seconds_per_step * 1e3:.1f} ms each" if status.HasField("seconds_per_step") else ""


def _measuring(status: pb.EdgeStatus) -> str:
    return f", {status.measuring_seconds:.3g} s of measuring" if status.measuring_seconds else ""


def _predicted(status: pb.EdgeStatus) -> str:
    if not status.HasField("predicted_seconds_per_step"):
        return ""
    return f", which predicted {status.predicted_seconds_per_step * 1e3:.1f} ms a step"


def _change(change: pb.EngineChange) -> str:
    at = change.time.ToDatetime().isoformat(" ", "seconds")
    return (
        f"at step {change.step}, {at}, from {change.before} to {change.chosen}, because {change.cause}; "
        f"{change.seconds_per_step * 1e3:.1f} ms a step foreseen, {change.staying_seconds_per_step * 1e3:.1f} ms without"
    )


def _held(status: pb.EdgeStatus, what: str) -> str:
    pinned = _known(status.pinned)
    return f", pinned to {pinned[what]}" if what in pinned else ""


def _held_cuts(status: pb.EdgeStatus) -> str:
    cuts = ",".join(map(str, status.pinned.cuts))
    return f", cuts pinned to {cuts}" if cuts else _held(status, "cut")


def _phase(phases: pb.PhaseSeconds, field: str) -> str:
    seconds = _known(phases)
    if field not in seconds:
        return "-"
    slowest = max(seconds.values())
    bar = "█" * round(30 * seconds[field] / slowest) if slowest > 0 else ""
    style = "yellow" if seconds[field] == slowest else "green"  # the limit of a step
    return f"{seconds[field] * 1e3:9.2f} ms [{style}]{bar}[/]"


def _rate(status: pb.EdgeStatus, link: str) -> str:
    rate = _known(status).get(f"{link}_bits_per_second")
    return "not known yet" if rate is None else f"{rate / 1e6:.1f} Mbit/s"


def _round_trip(status: pb.EdgeStatus) -> str:
    known = status.HasField("round_trip_seconds")
    return f", {status.round_trip_seconds * 1e3:.1f} ms there and back" if known else ""


def _checkpoint(status: pb.EdgeStatus) -> str:
    if not status.HasField("last_checkpoint"):
        return "none at every worker yet"
    last = status.last_checkpoint
    ago = f", {time_text(last.age)} ago" if last.HasField("age") else ""
    return f"step {last.step}{ago}" + (f"; it lacks replicas: {last.lacks_replicas}" if last.lacks_replicas else "")
