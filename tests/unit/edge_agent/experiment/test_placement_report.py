"""The costs and leaks of a placement: bytes as the codecs make them, memory as tensors take it, and the data each
worker sees."""

import copy
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.experiment.placement_report import report_on
from edge_agent.experiment.workload import Workload
from edge_agent.placement_config import PlacementSection
from shared.codec import codec_by_name
from shared.errors import DataError
from shared.execution.model_facts import facts_of
from shared.execution.shared_blocks import part_of, weights_of
from shared.placement import Cargo, document_of
from shared.training.losses import narrowed
from tests.support.examples import examples
from tests.support.experiments import flags
from tests.support.placements import placements
from tests.support.running import edge_config

TWO = 'trainers=[{name="near", address="a:1"}, {name="far", address="b:1"}]'
CHAIN = (TWO, "placement.edge=0:1", "placement.near=1:2", "placement.far=2:")
PERMITTED = 'privacy={inputs_to=["near", "far"], gradients_to=["near", "far"]}'


def workload(*more, experiment=("cnn", "sgd")):
    return Workload(edge_config(*flags(*experiment), *more))


def reported(*more, experiment=("cnn", "sgd")):
    return report_on(workload(*more, experiment=experiment))


def memory_without_samples_ahead(report):
    memory = of(report, "edge")[0]
    return memory.weights + memory.gradients + memory.optimizer + memory.activations + memory.waiting


def of(report, worker):
    """Return a worker's memory, and the data that it sees."""
    return next(one for one in report.memory if one.worker == worker), next(
        one for one in report.visibility if one.worker == worker
    )


@pytest.mark.parametrize(("codec", "downlink"), [("fp32", "fp32"), ("uniform8", "fp16"), ("uniform4-channel", "raw")])
def test_bytes_are_those_that_the_codecs_make_of_the_tensors(codec, downlink):
    chosen = workload(*CHAIN, f"deployment.codec={codec}", f"deployment.downlink_codec={downlink}")
    batch = next(chosen.loader.iterate(0, 1))
    features = [batch.inputs]
    with torch.no_grad():
        for block in chosen.chain.blocks:
            features.append(block.module(features[-1]))
    for one in report_on(chosen).transfers:
        match one.crossing.cargo:
            case Cargo.FEATURE:
                expected = codec_by_name(codec).encode(features[one.crossing.index].contiguous())
            case Cargo.ERROR_GRADIENT:
                expected = codec_by_name(downlink).encode(torch.randn(features[one.crossing.index].shape))
            case Cargo.LABEL:
                expected = codec_by_name("raw").encode(narrowed(batch.labels))
        assert one.bytes == expected.payload.nbytes


def test_integers_cross_as_they_are_and_have_no_gradients():
    report = reported(
        TWO,
        "placement.near=0:2",
        "placement.edge=2:",
        PERMITTED,
        "deployment.codec=uniform8",
        experiment=("lstm", "sgd"),
    )
    tokens = next(one for one in report.transfers if one.crossing.index == 0)
    spec = workload(experiment=("lstm", "sgd")).chain.features[0][0]
    assert (tokens.crossing.cargo, tokens.bytes) == (Cargo.FEATURE, spec.bytes)
    assert not [
        one for one in report.transfers if one.crossing.cargo is Cargo.ERROR_GRADIENT and one.crossing.index == 0
    ]


def shared(tmp_path):
    """Place two blocks on the edge and near, updated by near, and the rest on far."""
    tiles = [
        {"worker": "edge", "blocks": [0, 2], "samples": [0, 8]},
        {"worker": "near", "blocks": [0, 2], "samples": [8, 32]},
        {"worker": "far", "blocks": [2, 4]},
    ]
    document = {"schema": "isthmus.placement/v1", "workers": ["edge", "near", "far"], "tiles": tiles}
    path = tmp_path / "shared.json"
    path.write_text(json.dumps({**document, "owners": {"0": "near", "1": "near"}}))
    return TWO, f"placement.file={path}", PERMITTED


@pytest.mark.parametrize("frozen", [[], ["stem.0"]])
def test_parts_and_weights_of_shared_blocks_are_as_large_as_what_their_holders_say(frozen, tmp_path):
    chosen = workload(*shared(tmp_path), f"model.frozen={frozen}")
    transfers = [one for one in report_on(chosen).transfers if "weight" in one.crossing.cargo]
    assert {(one.crossing.sender, one.crossing.receiver) for one in transfers} == {("edge", "near"), ("near", "edge")}
    assert len(transfers) == 4
    for one in transfers:
        block = chosen.chain.blocks[one.crossing.index]
        gradient = {name: value for name, value in block.named_parameters().items() if value.requires_grad}
        part = part_of(block, gradient) if one.crossing.cargo is Cargo.WEIGHT_GRADIENT else weights_of(block)
        assert one.bytes == sum(tensor.nbytes for tensor in part.values())


def test_only_the_owner_keeps_the_optimizers_state(tmp_path):
    report = report_on(Workload(edge_config(*flags("cnn", "adam"), *shared(tmp_path))))
    edge, near = of(report, "edge")[0], of(report, "near")[0]
    assert (edge.weights, edge.gradients) == (near.weights, near.gradients)
    assert edge.optimizer == 0
    assert near.optimizer > 2 * near.gradients - 1


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_with_replay_the_inputs_of_k_batches_wait_in_memory(staleness):
    chosen = workload(*CHAIN, f"deployment.staleness={staleness}")
    report, features = report_on(chosen), chosen.chain.features
    assert of(report, "edge")[0].waiting == staleness * features[0][0].bytes
    assert of(report, "near")[0].waiting == staleness * features[1][0].bytes
    assert of(report, "far")[0].waiting == 0, "who computes the loss waits for nothing"


def test_with_stashing_activations_and_weights_wait_in_memory():
    late = (*CHAIN, "deployment.staleness=2", "deployment.staleness_correction=none")
    replayed, stashed = (of(reported(*late, more), "near")[0] for more in (
        "deployment.backward=replay", "deployment.backward=stash"))  # fmt: skip
    assert stashed.waiting == 2 * (stashed.activations + stashed.gradients)
    assert (replayed.activations, replayed.weights) == (stashed.activations, stashed.weights)


def test_weights_that_are_predicted_are_one_copy_more():
    late = (*CHAIN, "deployment.staleness=2")
    plain, predicted = (
        of(reported(*late, f"deployment.staleness_correction={name}", experiment=("cnn", "adam")), "near")[0]
        for name in ("none", "prediction")
    )
    assert predicted.total == plain.total + plain.gradients


@pytest.mark.parametrize(("clip", "copies"), [("block", 0), ("model", 1)])
def test_the_last_blocks_have_predicted_weights_where_their_updates_are_late(clip, copies):
    optimizer = f'training.optimizer={{name="sgd", momentum=0.9, clip_norm=1.0, clip="{clip}"}}'
    plain, predicted = (
        of(reported(*CHAIN, "deployment.staleness=2", optimizer, f"deployment.staleness_correction={name}"), "far")[0]
        for name in ("none", "prediction")
    )
    assert predicted.total == plain.total + copies * plain.gradients


def test_sgd_without_momentum_has_one_where_weights_are_predicted():
    late = (*CHAIN, "deployment.staleness=2", 'training.optimizer={name="sgd"}')
    plain, predicted = (
        of(reported(*late, f"deployment.staleness_correction={name}"), "near")[0] for name in ("none", "prediction")
    )
    assert predicted.total == plain.total + 2 * plain.gradients


@pytest.mark.parametrize("ahead", [0, 2])
def test_samples_that_leave_before_their_step_are_in_memory_at_both_ends(tmp_path, ahead):
    chosen = Workload(edge_config(*flags("cnn", "adam"), *shared(tmp_path), f"data.ahead={ahead}"))
    report, shapes = report_on(chosen), (chosen.chain.features[0], chosen.labels)
    inputs, labels = (sum(spec.bytes for spec in specs) for specs in shapes)
    raw = [one for one in report.transfers if one.crossing.cargo is Cargo.FEATURE and one.crossing.index == 0]
    labelled = [one for one in report.transfers if one.crossing.cargo is Cargo.LABEL]
    assert of(report, "edge")[0].ahead == ahead * (inputs + labels)
    for trainer in ("near", "far"):
        came = [one for one in (*raw, *labelled) if one.crossing.receiver == trainer]
        assert of(report, trainer)[0].ahead == ahead * sum(one.bytes for one in came), trainer
    assert of(report, "edge")[0].total == memory_without_samples_ahead(report) + ahead * (inputs + labels)


def test_nothing_is_ahead_of_features_and_labels_that_stay():
    stay = ('placement.edge=["0:1", "3:"]', "placement.near=1:2", "placement.far=2:3", 'placement.labels="edge"')
    assert {one.ahead for one in reported(TWO, *stay).memory} == {0}


def test_a_stage_below_which_nothing_learns_keeps_nothing():
    report = reported(*CHAIN, 'model.frozen=["stem"]', "deployment.staleness=3")
    memory, _ = of(report, "edge")
    assert (memory.gradients, memory.optimizer, memory.activations, memory.waiting) == (0, 0, 0, 0)
    assert memory.weights > 0
    assert not [one for one in report.transfers if one.crossing.receiver == "edge"]


def test_labels_that_stay_are_seen_by_nobody_else():
    report = reported(TWO, 'placement.edge=["0:1", "3:"]', "placement.near=1:3", "placement.labels=edge")
    visible = of(report, "near")[1]
    assert (visible.inputs, visible.labels, visible.outputs) == (False, False, False)
    assert visible.gradients_tell == ("labels",), "no label crosses, but error gradients tell of them"
    assert (visible.features, visible.weights) == ((1,), (1, 2))
    assert not [one for one in report.transfers if one.crossing.cargo is Cargo.LABEL]


def test_features_behind_lookups_alone_are_inputs():
    report = reported(TWO, "placement.edge=0:1", "placement.near=1:", PERMITTED, experiment=("lstm", "sgd"))
    visible = of(report, "near")[1]
    assert (visible.inputs, visible.features) == (True, ())


AUTOENCODER = [
    'model.factory="shared.model.zoo:mlp"',
    "model.kwargs={outputs=64}",
    "training.loss=mse",
    'data.train={factory="tests.support.samples:Itself"}',
]


def test_labels_that_are_the_inputs_go_only_where_inputs_may():
    chain = (TWO, "placement.edge=0:1", "placement.near=1:2", "placement.far=2:")
    with pytest.raises(DataError, match=r'data\.train: .* set privacy\.inputs_to to \["far"\]'):
        report_on(Workload(edge_config(*AUTOENCODER, *chain, 'privacy.inputs_to=["near"]')))
    assert report_on(Workload(edge_config(*AUTOENCODER, *chain, 'privacy.inputs_to=["far"]'))).transfers
    staying = (TWO, 'placement.edge=["0:1", "2:"]', "placement.near=1:2")
    assert report_on(Workload(edge_config(*AUTOENCODER, *staying))).transfers


@pytest.fixture(scope="module")
def perceptron():
    """Build four blocks without batch-norm: any worker may have any samples."""
    return workload(TWO, "placement.edge=0:", PERMITTED, experiment=("mlp", "adam"))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_in_any_placement_bytes_follow_the_rows_and_each_worker_sees_only_its_arrivals(data, tmp_path, perceptron):
    placement = data.draw(placements(facts_of(perceptron.chain)))
    path = tmp_path / "any.json"
    document = {**document_of(placement), "staleness": 0}
    del document["sources"]  # the edge has all samples
    path.write_text(json.dumps(document))
    chosen = copy.copy(perceptron)
    chosen.batch_size = placement.batch_size
    chosen.config = perceptron.config.model_copy(update={"placement": PlacementSection(file=path)})
    report = report_on(chosen)

    per_sample = [specs[0].bytes // specs[0].shape[0] for specs in chosen.chain.features]
    for one in report.transfers:
        if one.crossing.cargo in (Cargo.FEATURE, Cargo.ERROR_GRADIENT):
            assert one.bytes == one.crossing.rows.count * per_sample[one.crossing.index]
        elif one.crossing.cargo is Cargo.LABEL:
            assert one.bytes == one.crossing.rows.count
    for worker in placement.workers:
        memory, visible = of(report, worker)
        coming = {
            (one.crossing.cargo, one.crossing.index) for one in report.transfers if one.crossing.receiver == worker
        }
        own = {tile.first for tile in placement.tiles_of(worker)}
        assert visible.inputs == (worker == "edge" or (Cargo.FEATURE, 0) in coming)
        assert visible.labels == (worker == "edge" or (Cargo.LABEL, 4) in coming)
        parts = {
            one.crossing
            for one in report.transfers
            if one.crossing.receiver == worker and "weight" in one.crossing.cargo
        }
        assert ("inputs" in visible.gradients_tell) == (worker != "edge" and 0 in {one.index for one in parts})
        assert visible.outputs == any(tile.stop == 4 for tile in placement.tiles_of(worker))
        assert set(visible.features) == {index for cargo, index in coming if cargo is Cargo.FEATURE and index}
        assert set(visible.features) <= own
        assert memory.weights == sum(per_block(chosen, block) for block in visible.weights)
        assert memory.total >= memory.weights + memory.gradients
    assert {block for one in report.visibility for block in one.weights} == set(range(4))


def per_block(chosen, block):
    return sum(value.nbytes for value in chosen.chain.blocks[block].named_parameters().values())


def test_a_keeper_of_replicas_has_their_weights_and_is_told_what_they_tell():
    placed = (TWO, "placement.near=0:2", "placement.far=2:", "checkpoints.replicas=1", 'privacy.inputs_to=["near"]')
    kept = reported(*placed)
    assert [of(kept, worker)[1].weights for worker in ("edge", "near", "far")] == [(0,), (0, 1, 2, 3), (1, 2, 3)]
    assert of(kept, "far")[1].gradients_tell == ()
    permitted = reported(*placed, 'privacy.gradients_to=["far"]')
    assert [of(permitted, worker)[1].weights for worker in ("edge", "far")] == [(), (0, 1, 2, 3)]
    assert of(permitted, "far")[1].gradients_tell == ("inputs",)


def test_with_checkpoints_of_activations_the_inputs_of_blocks_wait_and_one_block_is_computed_again():
    stash = (
        *CHAIN[:2],
        "placement.near=1:3",
        "placement.far=3:",
        "deployment.staleness=2",
        "deployment.backward=stash",
    )
    kept, again = (of(reported(*stash, f"training.checkpoint_activations={on}"), "near")[0] for on in ("false", "true"))
    features = workload(*stash).chain.features
    assert again.waiting == 2 * (features[1][0].bytes + features[2][0].bytes + again.gradients)
    assert again.waiting - 2 * again.gradients < 2 * again.activations < 2 * kept.activations


def test_clipped_by_one_norm_gradients_wait_with_the_batches_and_few_numbers_cross():
    apart = (*CHAIN[:2], "placement.near=1:3", "placement.far=3:", "deployment.staleness=2")
    clipped = 'training.optimizer={name="sgd", clip_norm=1.0, clip="model"}'
    before, after = reported(*apart), reported(*apart, clipped)
    added = [one for one in after.transfers if one not in before.transfers]
    assert {str(one.crossing.cargo) for one in added} == {"norms", "coefficient"}
    assert sum(one.bytes for one in added) < 1000
    assert of(after, "near")[0].waiting == of(before, "near")[0].waiting + 2 * of(before, "near")[0].gradients
    summed = reported(*apart, "training.accumulate_batches=2")
    assert of(summed, "near")[0].gradients == 2 * of(before, "near")[0].gradients
