"""The dashboard of an edge: how its run goes, then the way of a batch, phase by phase."""

from deploy.grafana.panels import (
    Board,
    Curve,
    Panels,
    build_board,
    figure,
    graph,
    health,
    histogram,
    label_variable,
    mark,
)
from deploy.grafana.promql import EDGE

INSTANCE = "{{instance}}"


def _one(query: str) -> Curve:
    return Curve(query, INSTANCE)


def _seconds(histogram_name: str, *labels: str) -> tuple[Curve, Curve]:
    return (
        Curve(EDGE.mean(histogram_name, *labels), f"mean, {INSTANCE}"),
        Curve(EDGE.quantile(0.95, histogram_name, *labels), f"95 %, {INSTANCE}"),
    )


def _phase(name: str) -> tuple[Curve, Curve]:
    return _seconds("isthmus_phase_seconds", f'phase="{name}"')


def _waiting(queue: str) -> Curve:
    return _one(EDGE.of("isthmus_queue_items", f'queue="{queue}"'))


def _run() -> Panels:
    of, bits = EDGE.of, "isthmus_codec_bit_width"
    done = f"{of('isthmus_steps_total')} / {of('isthmus_planned_steps')}"
    accuracy = _one(of("isthmus_accuracy_ratio"))
    figures = [
        figure("Done", "Share of the planned steps.", "percentunit", _one(done)),
        figure("Stream", "1 while the trainer's stream is there.", "short", _one(of("isthmus_attached"))),
        figure("Loss now", "Mean training loss of the last step.", "short", _one(of("isthmus_loss"))),
        figure("Accuracy now", "Of the last evaluation.", "percentunit", accuracy),
        figure("Blocks now", "Blocks on the edge.", "short", _one(of("isthmus_edge_blocks"))),
        figure("K", "Limit of the staleness.", "short", _one(of("isthmus_staleness_limit_steps"))),
        figure("Bits up", "Of an element of a feature.", "short", _one(of(bits, 'direction="up"'))),
        figure("Bits down", "Of an element of an error gradient.", "short", _one(of(bits, 'direction="down"'))),
    ]
    rate = _one(EDGE.rate("isthmus_samples_total"))
    metrics = Curve(of("isthmus_metric"), "{{name}}, {{instance}}")
    run = Curve(of("isthmus_run_info"), "{{run}}, {{instance}}")
    return [
        *figures,
        graph("Loss", "Mean training loss of the last step at each scrape.", "short", 8, _one(of("isthmus_loss"))),
        graph("Accuracy", "Share of the test samples that were right.", "percentunit", 8, accuracy, steps=True),
        graph("Samples a second", "Trained on.", "short", 8, rate),
        graph("Metrics", "Of `training.metrics`, at the last evaluation.", "short", 24, metrics, steps=True),
        graph("Run", "Its id, by which the logs of all its processes name it.", "short", 24, run, steps=True),
    ]


def _step() -> Panels:
    phases = Curve(EDGE.mean("isthmus_phase_seconds", 'phase!="downlink"'), "{{phase}}, " + INSTANCE)
    hidden = "Means of T1 to T3. With a K that hides the rest, a step takes as long as its longest phase."
    return [
        graph("Step", "From one finished step to the next.", "s", 12, *_seconds("isthmus_step_seconds")),
        graph("Phases", hidden, "s", 12, phases),
    ]


def _computing() -> Panels:
    ready = "Loaded and not yet started. Zero all the time: loading holds the edge back."
    replaced = "Samples that could not be read, in whose places others were trained on."
    return [
        graph("T1", "Forward, and backward with update.", "s", 8, *_phase("edge")),
        graph("Batches ready", ready, "short", 8, _waiting("compute")),
        graph("Skipped samples", replaced, "short", 8, _one(EDGE.of("isthmus_skipped_samples")), steps=True),
    ]


def _link(direction: str) -> Panels:
    label = f'direction="{direction}"'
    measured = Curve(EDGE.of("isthmus_link_bytes_per_second", label), f"measured, {INSTANCE}")
    used = Curve(EDGE.rate("isthmus_payload_bytes_total", label), f"used, {INSTANCE}")
    carried = "What the link was measured to carry, and what training uses of it."
    spared = "Share of the bytes of tensors that the codec kept off the link."
    return [
        graph(f"Bandwidth {direction}", carried, "Bps", 8, measured, used),
        graph(f"Spared {direction}", spared, "percentunit", 8, _one(EDGE.spared(direction))),
    ]


def _way_up() -> Panels:
    transfer = "From a feature's first byte written to its acknowledgement."
    return [
        graph("Features that wait", "For the codec and the link.", "short", 24, _waiting("send")),
        graph("T2", transfer, "s", 8, *_phase("uplink")),
        *_link("up"),
    ]


def _way_down() -> Panels:
    return [
        *_link("down"),
        graph("Gradients that wait", "To be applied by the compute thread.", "short", 8, _waiting("apply")),
    ]


def _workers() -> Panels:
    computes = Curve(EDGE.mean("isthmus_stage_seconds"), "{{worker}}, " + INSTANCE)
    slowest = Curve(EDGE.quantile(0.95, "isthmus_stage_seconds"), "{{worker}}, " + INSTANCE)
    rates = Curve(EDGE.of("isthmus_worker_link_bytes_per_second"), "{{link}}, " + INSTANCE)
    off = Curve(EDGE.of("isthmus_prediction_ratio"), "{{worker}}, " + INSTANCE)
    decisions = Curve(EDGE.rate("isthmus_decisions_total"), "{{reason}}, " + INSTANCE)
    return [
        graph("Computing", "Of each worker of the placement for a step, on average.", "s", 8, computes),
        graph("Slow steps", "What 95 % of the steps did not exceed at a worker.", "s", 8, slowest),
        graph("Links", "What each was measured to carry, from one worker to another.", "Bps", 8, rates),
        graph("Against the prediction", "What workers took over what was predicted.", "short", 12, off),
        graph("Decisions", "Changes that the engine chose, a second, by their reason.", "short", 12, decisions),
    ]


def _sharing() -> Panels:
    samples = Curve(EDGE.of("isthmus_worker_samples"), "{{worker}}, " + INSTANCE)
    blocks = Curve(EDGE.of("isthmus_worker_blocks"), "{{worker}}, " + INSTANCE)
    exchanged = Curve(EDGE.rate("isthmus_exchange_bytes_total"), "{{direction}}, " + INSTANCE)
    inputs = Curve(EDGE.of("isthmus_inputs_sent_total"), INSTANCE)
    overlap = Curve(EDGE.of("isthmus_overlap_ratio"), INSTANCE)
    return [
        graph("Samples", "Of a batch, by worker.", "short", 6, samples, steps=True),
        graph("Blocks by worker", "With which each computes.", "short", 6, blocks, steps=True),
        graph("Exchanged", "Weights of shared blocks and their gradients.", "Bps", 6, exchanged),
        graph(
            "Exchange", "Of one shared block, up to its acknowledgement.", "s", 6, *_seconds("isthmus_exchange_seconds")
        ),
        graph("Inputs sent", "Tensors, since the start.", "short", 6, inputs, steps=True),
        graph("Exposed", "Of a step, while the edge computed nothing.", "s", 6, *_seconds("isthmus_exposed_seconds")),
        graph("Overlap", "Of what links carried of shared blocks.", "percentunit", 6, overlap),
        graph("Scheduling", "Making a member's schedule again.", "s", 6, *_seconds("isthmus_scheduling_seconds")),
    ]


def _staleness() -> Panels:
    mean = Curve(EDGE.mean("isthmus_staleness_steps"), f"mean, {INSTANCE}")
    limit = Curve(EDGE.of("isthmus_staleness_limit_steps"), f"K, {INSTANCE}")
    buckets = f"sum by (le) ({EDGE.rate('isthmus_staleness_steps_bucket')})"
    flying = _one(EDGE.of("isthmus_batches_in_flight"))
    return [
        graph("Staleness", "Of the applied gradients, and its limit.", "short", 8, mean, limit),
        histogram("How stale", "Gradients a second, by staleness.", "short", 8, buckets),
        graph("In flight", "Batches that have begun and hold up others.", "short", 8, flying),
    ]


def _float16() -> Panels:
    return [
        graph("Loss scale", "By which losses are multiplied.", "short", 12, _one(EDGE.of("isthmus_loss_scale"))),
        graph(
            "Skipped updates",
            "Because a gradient overflowed.",
            "short",
            12,
            _one(EDGE.of("isthmus_skipped_updates")),
            steps=True,
        ),
    ]


def _recovery() -> Panels:
    lost = Curve(EDGE.of("isthmus_link_losses_total"), f"{{{{worker}}}} lost, {INSTANCE}")
    back = Curve(EDGE.of("isthmus_rollbacks_total"), f"rolled back, {INSTANCE}")
    replaced = Curve(EDGE.of("isthmus_replacements_total"), f"trainers replaced, {INSTANCE}")
    stood_in = Curve(EDGE.of("isthmus_stand_ins_total"), f"stand-ins, {INSTANCE}")
    repeated = Curve(EDGE.of("isthmus_repeated_steps_total"), INSTANCE)
    pause = EDGE.of("isthmus_checkpoint_seconds_sum")
    age = Curve(f"time() - ({EDGE.of('isthmus_checkpoint_timestamp_seconds')} > 0)", INSTANCE)
    replica_age = Curve(f"{EDGE.of('isthmus_replica_age_seconds')} > 0", f"with replicas, {INSTANCE}")
    return [
        graph(
            "Lost and rolled back",
            "Links to trainers, and runs, since the start.",
            "short",
            6,
            lost,
            back,
            replaced,
            stood_in,
            steps=True,
        ),
        graph("Steps repeated", "After going back to a checkpoint, since the start.", "short", 6, repeated, steps=True),
        graph("Stood still for checkpoints", "Seconds, since the start.", "s", 6, _one(pause), steps=True),
        graph("Age of the checkpoint", "Of the newest that both sides have.", "s", 6, age, replica_age),
    ]


def _deployment() -> Panels:
    held = Curve(EDGE.of("isthmus_edge_blocks"), f"on the edge, {INSTANCE}")
    blocks = Curve(EDGE.of("isthmus_model_blocks"), f"in all, {INSTANCE}")
    bits = Curve(EDGE.of("isthmus_codec_bit_width"), "{{direction}}, " + INSTANCE)
    moved = Curve(EDGE.of("isthmus_migrations_total"), "{{outcome}}, " + INSTANCE)
    pause = EDGE.of("isthmus_migration_seconds_sum")
    handed = Curve(EDGE.of("isthmus_handovers_total"), "{{reason}}, " + INSTANCE)
    handover_pause = EDGE.of("isthmus_handover_seconds_sum")
    relayed = Curve(EDGE.of("isthmus_relayed"), INSTANCE)
    candidates = Curve(EDGE.of("isthmus_candidate_step_seconds"), "{{trainer}}, " + INSTANCE)
    probed = _one(EDGE.rate("isthmus_probe_bytes_total"))
    decided = Curve(EDGE.of("isthmus_decisions_total"), "{{reason}}, " + INSTANCE)
    measuring = _one(EDGE.of("isthmus_measuring_seconds_total"))
    predicted = Curve(EDGE.of("isthmus_engine_step_seconds"), "{{kind}}, " + INSTANCE)
    return [
        graph("Blocks", "On the edge, of all of the model.", "short", 6, held, blocks, steps=True),
        graph("Bits", "Of an element on the link.", "short", 6, bits, steps=True),
        graph("Migrations", "Since the start.", "short", 6, moved, steps=True),
        graph("Stood still", "Seconds that migrations took, since the start.", "s", 6, _one(pause), steps=True),
        graph("Handovers", "From trainer to trainer, since the start.", "short", 8, handed, steps=True),
        graph("Stood still for handovers", "Seconds, since the start.", "s", 8, _one(handover_pause), steps=True),
        graph("Relayed", "Trainers that are reached through another one.", "short", 8, relayed, steps=True),
        graph("Candidates", "Seconds that a step would take with each trainer now.", "s", 16, candidates),
        graph("Probes", "Bytes a second of probes of candidates.", "Bps", 8, probed),
        graph("Decisions", "Changes that the engine chose, since the start.", "short", 8, decided, steps=True),
        graph("Measuring", "Seconds that training waited for the engine's own, since the start.", "s", 8, measuring),
        graph("Predicted and measured", "Seconds of a step with today's deployment.", "s", 8, predicted),
    ]


def edge_dashboard() -> Board:
    """One edge or several, by the variable `instance`."""
    return build_board(
        "isthmus-edge",
        "Isthmus edge",
        "How the run of an edge goes, and where the time of a step goes.",
        [label_variable("instance", 'isthmus_steps_total{job="isthmus-edge"}', "The edges that are shown.")],
        [
            mark("blocks moved", EDGE.changed("isthmus_edge_blocks"), "purple"),
            mark("stream came or went", EDGE.changed("isthmus_attached"), "red"),
        ],
        {
            "The run": _run(),
            "Where the time of a step goes": _step(),
            "1 · The edge computes": _computing(),
            "2 · The way up": _way_up(),
            "3 · The cloud computes": [
                graph("T3", "Forward, loss, backward and update of the cloud's blocks.", "s", 24, *_phase("cloud"))
            ],
            "4 · The way down": _way_down(),
            "Workers and links": _workers(),
            "Divided batches": _sharing(),
            "Staleness": _staleness(),
            "Float16": _float16(),
            "Deployment": _deployment(),
            "Recovery": _recovery(),
            "Health": health(EDGE),
        },
    )
