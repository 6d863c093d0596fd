"""A run as `EdgeStatus` says it, and the sessions of this device."""

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from edge_agent.control.control_state import ControlState
from edge_agent.control.pins import Pins
from edge_agent.planning.engine.decision import EngineChange
from edge_agent.sessions.session_record import SessionRecord, trainer_addresses
from edge_agent.training.history import HistoryRow
from edge_agent.training.statistics import Statistics
from edge_agent.training.training_run import TrainingRun
from shared.checkpoint import CheckpointName
from shared.control.answers import deployment_status, level_now
from shared.telemetry.step_series import Distribution
from shared.wire.isthmus.v1 import control_pb2 as pb

_MOST_ROWS = 500
"""Rows of a history in one answer: as many as a picture of it has room for."""


def edge_status(state: ControlState) -> pb.EdgeStatus:
    """Build the current status of the run."""
    statistics, config = state.statistics, state.config
    status = pb.EdgeStatus(
        state=pb.RunState.Value(f"RUN_STATE_{state.activity.name}"),
        trainer=trainer_addresses(config),
        model=config.model.factory,
        step=statistics.steps,
        total_steps=statistics.total_steps,
        pinned=pins_message(state.pinning.now),
        staleness=statistics.staleness,
        waits_because=statistics.waits_because,
        phases=_phases(statistics),
        uplink_bits_per_second=statistics.uplink_bits_per_second,
        downlink_bits_per_second=statistics.downlink_bits_per_second,
        round_trip_seconds=statistics.round_trip_seconds,
        bytes_up=statistics.bytes_up,
        bytes_down=statistics.bytes_down,
        loss=statistics.loss,
        accuracy=statistics.accuracy,
        metrics=statistics.metrics,
        seconds_per_step=_shown(statistics.step_time),
        log_level=level_now(),
    )
    if (seconds := statistics.step_time.recent) is not None and seconds > 0:
        status.samples_per_second = float(f"{config.data.batch_size / seconds:.6g}")
    left_out = () if state.run is None else state.run.session.stored.record.left_out
    for name, worker in statistics.workers.items():
        seconds, out = _shown(worker.compute), name in left_out
        status.workers.add(
            name=name, blocks=worker.blocks, step=worker.done_step, compute_seconds=seconds, left_out=out
        )
    for (sender, receiver), rate in statistics.link_rates.items():
        status.links.add(sender=sender, receiver=receiver, bits_per_second=rate)
    status.running.FromNanoseconds(int(state.running_seconds * 1e9))
    if state.decisions is not None:
        status.planner = state.decisions.planner
        status.measuring_seconds = state.decisions.measuring_seconds
        outcome = state.decisions.engine.outcome()
        if outcome is not None and not math.isnan(outcome.predicted_seconds_per_step):
            status.predicted_seconds_per_step = outcome.predicted_seconds_per_step
        if (change := state.decisions.last_change) is not None:
            status.engine_change.CopyFrom(_change_message(change))
    for name, seconds_per_step in state.ranking.items():
        status.candidates.add(name=name, seconds_per_step=seconds_per_step)
    if state.run is not None:
        _add_session(status, state.run)
    return status


def _change_message(change: EngineChange) -> pb.EngineChange:
    decision = change.decision
    message = pb.EngineChange(
        step=change.step,
        before=str(change.before),
        chosen=str(decision.layout),
        reason=decision.reason,
        cause=decision.cause,
        seconds_per_step=decision.seconds_per_step,
        staying_seconds_per_step=decision.staying_seconds_per_step,
    )
    message.time.FromNanoseconds(int(change.time_seconds * 1e9))
    return message


def pins_message(pins: Pins) -> pb.Pins:
    """Build the message of the pins."""
    message, cuts = pb.Pins(bits=pins.bits, staleness=pins.staleness, trainer=pins.trainer), pins.cuts or ()
    if len(cuts) == 1:
        message.cut = cuts[0]
    else:
        message.cuts.extend(cuts)
    return message


def history_answer(rows: Sequence[HistoryRow], after: pb.HistoryRow | None = None) -> pb.GetHistoryResponse:
    """Return a history as an answer: what follows a row that the caller has, or all of it.

    after: an empty one is none. Of all of it some rows are left out evenly where there are too many; the newest is there.
    """
    if after is not None and (begin := _index_after(rows, after)) is not None and len(rows) - begin <= _MOST_ROWS:
        return pb.GetHistoryResponse(rows=map(_message_of, rows[begin:]), follows=True)
    every = math.ceil(len(rows) / _MOST_ROWS) or 1
    return pb.GetHistoryResponse(rows=map(_message_of, reversed(rows[::-every])))


def _index_after(rows: Sequence[HistoryRow], told: pb.HistoryRow) -> int | None:
    """The index after a row that was told; None where it has gone or has changed since, and then others may have, too.

    A row whose steps were done once more has other seconds, and so has each row after it: if the newest row that was told is
    there, all before it are.
    """
    index = bisect_left(rows, told.step, key=lambda row: row.step)
    if index == len(rows) or _as_bytes(_message_of(rows[index])) != _as_bytes(told):
        return None
    return index + 1


def _message_of(row: HistoryRow) -> pb.HistoryRow:
    return pb.HistoryRow(**row._asdict())


def _as_bytes(message: pb.HistoryRow) -> bytes:
    """For a comparison in which what is no number equals itself."""
    return message.SerializeToString(deterministic=True)


def rows_of(answer: pb.GetHistoryResponse) -> list[HistoryRow]:
    """Return the rows of an answer."""
    return [_row_of(message) for message in answer.rows]


def _row_of(message: Any) -> HistoryRow:
    left_out = {
        field.name for field in message.DESCRIPTOR.fields if field.has_presence and not message.HasField(field.name)
    }
    figures: dict[str, Any] = {
        name: None if name in left_out else getattr(message, name) for name in HistoryRow._fields
    }
    return HistoryRow(**figures)._replace(metrics=dict(message.metrics))


def session_statuses(
    sessions: Iterable[tuple[SessionRecord, CheckpointName | None, bool]],
) -> list[pb.EdgeSessionStatus]:
    """Unfinished sessions: record, newest checkpoint, and whether a process has the session open."""
    statuses = []
    for record, newest, is_open in sessions:
        stored = pb.EDGE_SESSION_STATE_NOTHING_KEPT if newest is None else pb.EDGE_SESSION_STATE_RESUMABLE
        status = pb.EdgeSessionStatus(
            session_id=record.session_id,
            state=pb.EDGE_SESSION_STATE_RUNNING if is_open else stored,
            model=record.model,
            trainer=record.trainer,
            checkpoint_step=None if record.shared is None else record.shared[1],
            total_steps=record.total_steps,
        )
        status.began.FromDatetime(datetime.fromisoformat(record.began))
        statuses.append(status)
    return statuses


def _add_session(status: pb.EdgeStatus, run: TrainingRun) -> None:
    record = run.session.stored.record
    status.session_id = record.session_id
    status.attached = run.training.attached
    blocks = len(run.session.experiment.chain.blocks)
    status.deployment.CopyFrom(deployment_status(run.deployer.deployment, blocks))
    if (wanted := run.deployer.wanted_edge_blocks) is not None:
        status.deployment.wanted_edge_blocks = wanted
    status.chosen_by = str(run.deployer.chosen_by)
    status.refused_change = run.deployer.refusal
    status.batches_in_flight = run.step_runner.in_flight
    status.queues.CopyFrom(pb.EdgeQueues(**run.step_runner.waiting))
    if record.shared is not None:
        status.last_checkpoint.step = record.shared[1]
        status.last_checkpoint.lacks_replicas = run.checkpointer.lacks_replicas
        if (at := run.checkpointer.shared_at) is not None:
            status.last_checkpoint.time.FromNanoseconds(int(at * 1e9))
            status.last_checkpoint.age.FromNanoseconds(max(0, int((time.time() - at) * 1e9)))


def _phases(statistics: Statistics) -> pb.PhaseSeconds:
    return pb.PhaseSeconds(
        edge=_shown(statistics.edge),
        uplink=_shown(statistics.uplink),
        cloud=_shown(statistics.cloud),
        downlink=_shown(statistics.downlink),
    )


def _shown(seconds: Distribution) -> float | None:
    """Six digits: more of a time would be noise."""
    return None if seconds.recent is None else float(f"{seconds.recent:.6g}")
