"""The dashboard of a trainer: how full it is, its sessions side by side, then the way of a batch through it."""

from deploy.grafana.panels import Board, Curve, Panels, build_board, figure, graph, health, label_variable, mark
from deploy.grafana.promql import SESSION, TRAINER

INSTANCE, EACH = "{{instance}}", "{{session}}"


def _one(query: str) -> Curve:
    return Curve(query, INSTANCE)


def _of_each(metric: str) -> Curve:
    return Curve(SESSION.of(metric), EACH)


def _phase(name: str) -> tuple[Curve, Curve]:
    label = f'phase="{name}"'
    return (
        Curve(TRAINER.mean("isthmus_phase_seconds", label), f"mean, {INSTANCE}"),
        Curve(TRAINER.quantile(0.95, "isthmus_phase_seconds", label), f"95 %, {INSTANCE}"),
    )


def _waiting(queue: str) -> Curve:
    return _one(TRAINER.of("isthmus_queue_items", f'queue="{queue}"'))


def _trainer() -> Panels:
    of = TRAINER.of
    busy = _one(TRAINER.rate("isthmus_phase_seconds_sum", 'phase="cloud"'))
    sessions, limit = of("isthmus_sessions"), of("isthmus_sessions_limit")
    training = f"sum by (job, instance) ({TRAINER.of('isthmus_session_attached')}) or 0 * {sessions}"
    share = "Share of the time that the compute thread works."
    steps, strangers = _one(TRAINER.rate("isthmus_steps_total")), _one(of("isthmus_failed_handshakes_total"))
    return [
        figure("Sessions", "Open now.", "short", _one(sessions), span=6),
        figure("Places", "Sessions that are taken at one time.", "short", _one(limit), span=6),
        figure("Training", "Sessions whose edge is there.", "short", _one(training), span=6),
        figure("Busy now", share, "percentunit", busy, span=6),
        graph(
            "Sessions",
            "Open, and the limit.",
            "short",
            6,
            _one(sessions),
            Curve(limit, f"limit, {INSTANCE}"),
            steps=True,
        ),
        graph("Busy", share, "percentunit", 6, busy),
        graph("Steps a second", "Of all sessions.", "short", 6, steps),
        graph("Failed handshakes", "Connections that never came to a call, since the start.", "short", 6, strangers),
    ]


def _sessions() -> Panels:
    direction = "{{direction}}, " + EACH
    steps = Curve(SESSION.rate("isthmus_session_steps_total"), EACH)
    used = Curve(SESSION.rate("isthmus_session_payload_bytes_total"), direction)
    bits = Curve(SESSION.of("isthmus_session_codec_bit_width"), direction)
    rate = Curve(SESSION.of("isthmus_session_link_bytes_per_second"), "{{link}}, " + EACH)
    none = f"0 * {SESSION.of('isthmus_session_attached')}"  # there is no series where no link is missing
    runs = Curve(SESSION.of("isthmus_session_info"), "{{run}}, {{worker}}")
    missing = Curve(f"{SESSION.of('isthmus_session_link_missing')} or {none}", "{{worker}}, " + EACH)
    return [
        graph("Steps a second by session", "", "short", 8, steps),
        graph("Loss", "Mean training loss of the last step.", "short", 8, _of_each("isthmus_session_loss")),
        graph("Edge there", "1 while it trains.", "short", 8, _of_each("isthmus_session_attached"), steps=True),
        graph("Bandwidth used", "By tensors.", "Bps", 8, used),
        graph("Bandwidth", "What each link was measured to carry, as the trainer sends on it.", "Bps", 8, rate),
        graph("Links missing", "1 while this trainer cannot dial a worker.", "short", 8, missing, steps=True),
        graph("Blocks", "On the edge.", "short", 8, _of_each("isthmus_session_edge_blocks"), steps=True),
        graph(
            "K", "Limit of the staleness.", "short", 8, _of_each("isthmus_session_staleness_limit_steps"), steps=True
        ),
        graph("Bits", "Of an element on the link.", "short", 8, bits, steps=True),
        graph(
            "Runs",
            "The run that each session is part of, and this trainer's worker in it.",
            "short",
            24,
            runs,
            steps=True,
        ),
    ]


def _groups() -> Panels:
    step = Curve(TRAINER.of("isthmus_group_step"), "{{group}}, " + INSTANCE)
    members = Curve(TRAINER.of("isthmus_group_members"), "{{group}}, " + INSTANCE)
    linked = Curve(TRAINER.of("isthmus_group_linked"), "{{group}}, {{rank}}, " + INSTANCE)
    of_rank = "{{group}}, {{rank}}, " + INSTANCE
    awaited = Curve(TRAINER.of("isthmus_group_awaited_seconds"), of_rank)
    without = Curve(TRAINER.rate("isthmus_group_left_out_total"), of_rank)
    late = Curve(TRAINER.rate("isthmus_group_late_total"), of_rank)
    lost = Curve(TRAINER.rate("isthmus_group_residuals_lost_total"), of_rank)
    waited = Curve(TRAINER.rate("isthmus_group_waited_seconds_total"), of_rank)
    return [
        graph("Step of a group", "", "short", 12, step, steps=True),
        graph("Members", "Those that have not left.", "short", 12, members, steps=True),
        graph(
            "Members linked", "1 while a rank is; the group waits for one that is not.", "short", 12, linked, steps=True
        ),
        graph("Waiting for a member", "Once a step waits longer than steps take.", "s", 12, awaited),
        graph("Updates without a member", "Blocks a second that went on without a rank.", "short", 12, without),
        graph("Late gradients", "Blocks a second whose gradient came too late to count.", "short", 12, late),
        graph(
            "Residuals lost", "Members a second that began again without what their codec had left.", "short", 12, lost
        ),
        graph(
            "Waiting at the barrier",
            "Of each second, how much a rank has given all and the step waits; the lowest holds up the others.",
            "percentunit",
            12,
            waited,
        ),
    ]


def _way(direction: str) -> Panels:
    used = _one(TRAINER.rate("isthmus_payload_bytes_total", f'direction="{direction}"'))
    spared = "Share of the bytes of tensors that codecs kept off the link."
    return [
        graph(f"Bandwidth used {direction}", "By the tensors of all sessions.", "Bps", 8, used),
        graph(f"Spared {direction}", spared, "percentunit", 8, _one(TRAINER.spared(direction))),
    ]


def trainer_dashboard() -> Board:
    """One trainer or several, by the variable `instance`, and their sessions, by the variable `session`."""
    wait, computed = "For the compute thread.", "Forward, loss, backward and update of a step."
    sent = "From a gradient's first byte written to its acknowledgement."
    onward = "From a feature's first byte written to its acknowledgement, in a chain."
    return build_board(
        "isthmus-trainer",
        "Isthmus trainer",
        "How full a trainer is, and what its sessions do.",
        [
            label_variable("instance", 'isthmus_sessions{job="isthmus-trainer"}', "The trainers that are shown."),
            label_variable("session", TRAINER.of("isthmus_session_steps_total"), "The sessions that are shown."),
        ],
        [
            mark("blocks moved", SESSION.changed("isthmus_session_edge_blocks"), "purple"),
            mark("session came or went", TRAINER.changed("isthmus_sessions"), "red"),
        ],
        {
            "The trainer": _trainer(),
            "Its sessions": _sessions(),
            "Its groups of devices": _groups(),
            "2 · The way up": [
                *_way("up"),
                graph("Batches that wait", wait, "short", 8, _waiting("compute")),
                graph("T2 to another trainer", onward, "s", 24, *_phase("uplink")),
            ],
            "3 · The cloud computes": [graph("T3", computed, "s", 24, *_phase("cloud"))],
            "4 · The way down": [
                graph("Gradients that wait", "For the codec and the link.", "short", 24, _waiting("send")),
                graph("T4", sent, "s", 8, *_phase("downlink")),
                *_way("down"),
            ],
            "Health": health(TRAINER),
        },
    )
