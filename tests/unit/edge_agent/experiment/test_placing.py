"""The placement that a configuration names: each of its forms, and the limits of each."""

import json
from contextlib import nullcontext

import pytest

from edge_agent.experiment.experiment import Experiment
from edge_agent.experiment.placing import placement_of
from edge_agent.experiment.workload import Workload
from shared.errors import ConfigError, ModelError
from shared.execution.model_facts import facts_of
from shared.placement import Cargo, Route, Rows, Source, Tile, crossings, loss_rows, unnamed_blocks
from tests.support.experiments import flags
from tests.support.running import edge_config

CNN = flags("cnn", "sgd")
"""Four blocks, the first three with batch-norm."""
GPU = 'trainers=[{name="gpu", address="gpu.example.org:50051"}]'
TWO = 'trainers=[{name="near", address="a:1"}, {name="far", address="b:1"}]'
FLAT_DIGITS = 'data.train={factory="tests.support.samples:FlatDigits"}'
WHOLE = Rows(0, 32)


def placed(*more, experiment=CNN):
    return placement_of(Workload(edge_config(*experiment, *more)))


def document(tmp_path, **keys):
    path = tmp_path / "placement.json"
    path.write_text(json.dumps({"schema": "isthmus.placement/v1", **keys}))
    return f"placement.file={path}"


@pytest.mark.first_case
@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_the_short_form_and_its_ranges_are_one_placement(cut):
    short = placed(f"deployment.cut={cut}", "trainer.name=gpu", "deployment.staleness=2")
    assert short.tiles[0] == Tile("edge", 0, cut, WHOLE)
    if cut < 4:
        ranges = placed(GPU, f"placement.edge=0:{cut}", f"placement.gpu={cut}:", "deployment.staleness=2")
        assert ranges == short


def test_with_all_blocks_here_so_is_the_loss_and_nothing_crosses():
    whole = placed("deployment.cut=4", "trainer.name=gpu")
    assert loss_rows(whole, "edge") == WHOLE
    assert loss_rows(whole, "gpu") is None
    assert crossings(whole, unnamed_blocks(4)) == ()


def test_the_loss_of_tokens_is_computed_by_one_worker(tmp_path):
    halves = [
        {"worker": name, "blocks": [0, 4], "samples": rows} for name, rows in (("edge", [0, 16]), ("gpu", [16, 32]))
    ]
    owners = dict.fromkeys("0123", "edge")
    shared = document(tmp_path, workers=["edge", "gpu"], tiles=halves, owners=owners)
    permitted = ('privacy.inputs_to=["gpu"]', 'privacy.gradients_to=["gpu"]')
    with pytest.raises(ConfigError, match="edge and gpu would each compute the loss 'token_cross_entropy' of a part"):
        placed(GPU, shared, *permitted, 'training.loss="token_cross_entropy"')
    with pytest.raises(
        ConfigError, match=r"each compute the loss 'cross_entropy' of a part .* by the weights of its classes"
    ):
        placed(GPU, shared, *permitted, f"training.loss.kwargs={{weight={[1.0] * 10}}}")
    assert placed(GPU, shared, *permitted).holders(3)[1].worker == "gpu"


def test_without_a_cut_half_of_the_blocks_run_here():
    assert placed().tiles_of("edge") == (Tile("edge", 0, 2, WHOLE),)


def test_codecs_are_those_of_the_configuration_and_go_where_something_crosses():
    chain = placed(TWO, "placement.edge=0:1", "placement.near=1:2", "placement.far=2:", "deployment.codec=uniform8")
    assert chain.codecs == {
        Route("edge", "near", Cargo.FEATURE): "uniform8",
        Route("near", "far", Cargo.FEATURE): "uniform8",
        Route("near", "edge", Cargo.ERROR_GRADIENT): "fp32",
        Route("far", "near", Cargo.ERROR_GRADIENT): "fp32",
    }


def test_workers_stand_in_the_order_of_the_configuration_and_only_those_that_have_blocks():
    assert placed(TWO, "placement.far=2:", "placement.edge=0:2").workers == ("edge", "far")
    assert placed(TWO, "placement.edge=0:").workers == ("edge",)


def test_a_file_says_what_ranges_cannot(tmp_path):
    tiles = [
        {"worker": "edge", "blocks": [0, 3], "samples": [0, 8]},
        {"worker": "near", "blocks": [0, 3], "samples": [8, 32]},
        {"worker": "near", "blocks": [3, 4]},
    ]
    codecs = [{"from": "edge", "to": "near", "cargo": "feature", "codec": "fp16"}]
    file = document(
        tmp_path, workers=["edge", "near"], tiles=tiles, owners={"0": "edge", "1": "near", "2": "near"}, codecs=codecs
    )
    found = placed(TWO, file, 'privacy.inputs_to=["near"]', "deployment.staleness=3")
    assert found.tiles[1] == Tile("near", 0, 3, Rows(8, 32))
    assert found.sources == (Source("edge", WHOLE),)
    assert (found.staleness, found.owner(0), sorted(found.shared_blocks)) == (3, "edge", [0, 1, 2])
    assert found.codecs[Route("edge", "near", Cargo.FEATURE)] == "fp16"
    assert found.codecs[Route("near", "edge", Cargo.ERROR_GRADIENT)] == "fp32"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((GPU, "placement.edge=0:1", "placement.gpu=2:"), "nobody has block 1 on samples"),
        ((GPU, "placement.edge=0:2", "placement.gpu=1:"), "two workers have block 1 on samples"),
        ((GPU, 'placement.edge=["0:2", "1:2"]', "placement.gpu=2:"), "two workers have block 1 on samples"),
        ((GPU, "placement.edge=0:4", "placement.gpu=4:"), "must hold at least one block of 0 to 3"),
        ((GPU, "placement.edge=0:2", "placement.gpu=2:9"), "must hold at least one block of 0 to 3"),
        ((GPU, "placement.gpu=0:2", "placement.edge=2:"), "raw samples would go from 'edge' to 'gpu'"),
        (
            (GPU, "placement.edge=0:2", "placement.gpu=2:", "placement.labels=edge"),
            "the loss is to be computed by edge",
        ),
    ],
)
def test_an_invalid_placement_is_refused_in_a_sentence(flags, sentence):
    with pytest.raises(ConfigError) as refused:
        placed(*flags)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"workers": ["edge", "gpu", "gpu"]}, "worker 'gpu' is named twice"),
        ({"workers": ["edge", "cloud"]}, "placement.json: worker 'cloud' is not configured; there are edge, gpu"),
        ({"staleness": 2}, "staleness is 2, and deployment.staleness is 0; leave it out of the file"),
        ({"codecs": [{"from": "edge", "to": "gpu", "cargo": "feature", "codec": "zip"}]}, "codec 'zip' does not exist"),
        (
            {"tiles": [{"worker": "edge", "blocks": [0, 4], "samples": [0, 9]},
                       {"worker": "gpu", "blocks": [0, 4], "samples": [9, 32]}]},
            "block 0 is shared by edge, gpu and has no owner",
        ),
        (
            {"tiles": [{"worker": "gpu", "blocks": [0, 4], "samples": [0, 1]},
                       {"worker": "edge", "blocks": [0, 4], "samples": [1, 32]}],
             "owners": dict.fromkeys("0123", "gpu")},
            "'gpu' has 1 sample of block 0 (stem), which needs 2 at least",
        ),
    ],
)  # fmt: skip
def test_an_invalid_file_is_refused_in_a_sentence(keys, sentence, tmp_path):
    tiles = [{"worker": "edge", "blocks": [0, 2]}, {"worker": "gpu", "blocks": [2, 4]}]
    file = document(tmp_path, **{"workers": ["edge", "gpu"], "tiles": tiles, **keys})
    with pytest.raises(ConfigError) as refused:
        placed(GPU, file, 'privacy.inputs_to=["gpu"]')
    assert sentence in str(refused.value)


def test_a_document_of_a_recorded_run_names_no_codec_that_rounds_at_random(tmp_path):
    tiles = [{"worker": "edge", "blocks": [0, 2]}, {"worker": "gpu", "blocks": [2, 4]}]
    feature = {"from": "edge", "to": "gpu", "cargo": "feature"}
    for codec, sentence in (
        ("uniform4-stochastic", "uniform4-stochastic is named, which rounds at random"),
        ("uniform4", ""),
    ):
        file = document(tmp_path, workers=["edge", "gpu"], tiles=tiles, codecs=[{**feature, "codec": codec}])
        assert placed(GPU, file).codecs, "without a record it may"
        with pytest.raises(ConfigError) if sentence else nullcontext() as refused:
            placed(GPU, file, "output.record=true", "output.directory=out")
        assert sentence in (str(refused.value) if refused else "")


def test_inputs_go_only_to_the_trainer_that_is_permitted():
    inverted = (TWO, "placement.far=0:2", "placement.edge=2:")
    assert placed(*inverted, 'privacy.inputs_to=["far"]').tiles[0].worker == "far"
    with pytest.raises(ConfigError, match="raw samples would go from 'edge' to 'far'"):
        placed(*inverted, 'privacy.inputs_to=["near"]')


def test_behind_lookups_alone_features_count_as_inputs():
    lstm = flags("lstm", "sgd")
    with pytest.raises(ConfigError, match="raw samples would go"):
        placed(GPU, "placement.edge=0:1", "placement.gpu=1:", experiment=lstm)
    assert placed(GPU, "placement.edge=0:2", "placement.gpu=2:", experiment=lstm).workers == ("edge", "gpu")


def test_a_batch_of_one_sample_may_be_trained_with():
    one = placed("data.batch_size=1", "data.test={factory='edge_agent.data:digits', kwargs={split='test'}}")
    assert one.tiles_of("edge") == (Tile("edge", 0, 2, Rows(0, 1)),)


def test_a_training_set_smaller_than_a_batch_is_the_whole_batch():
    few = 'data.train={factory="tests.support.samples:FewDigits", kwargs={count=20}}'
    small = placed(few, "data.drop_last=false", experiment=flags("mlp", "sgd"))
    assert (small.batch_size, small.tiles[0].rows) == (20, Rows(0, 20))


def test_a_feature_of_complex_numbers_cannot_be_sent():
    spectral = ['model.factory="tests.support.models.spectral:spectral"', FLAT_DIGITS]
    assert placed("deployment.cut=1", experiment=spectral)
    with pytest.raises(ConfigError, match=r"what enters block 2 \(2\) would go .* numbers of type complex64"):
        placed("deployment.cut=2", experiment=spectral)


def test_the_facts_of_a_chain_are_those_of_its_blocks():
    chain = Workload(edge_config(*CNN, 'model.frozen=["stem"]')).chain
    facts = facts_of(chain)
    assert [block.name for block in facts.blocks] == [block.name for block in chain.blocks]
    assert [block.trainable for block in facts.blocks] == [False, True, True, True]
    assert [block.has_buffers for block in facts.blocks] == [True, True, True, False]
    assert [block.min_samples for block in facts.blocks] == [2, 2, 2, 1]
    assert facts.raw_features == 1


def test_an_experiment_is_the_same_however_its_two_workers_are_written():
    short = Experiment(edge_config(*CNN, "deployment.cut=1", "deployment.codec=uniform8", "deployment.staleness=1"))
    named = [GPU, "placement.edge=0:1", "placement.gpu=1:", "deployment.codec=uniform8", "deployment.staleness=1"]
    written = Experiment(edge_config(*CNN, *named))
    assert written.deployment == short.deployment
    assert written.held.indices == short.held.indices == (0,)


@pytest.mark.parametrize(("edge", "gpu", "here"), [(["0:1", "3:"], "1:3", 2), ("3:", "0:3", 1), ("0:3", "3:", 3)])
def test_all_blocks_of_the_device_count_wherever_they_stand(edge, gpu, here):
    named = [GPU, f"placement.edge={json.dumps(edge)}", f"placement.gpu={gpu}", 'privacy.inputs_to=["gpu"]']
    assert Experiment(edge_config(*CNN, *named)).deployment.edge_blocks == here


def test_codecs_of_a_file_are_those_of_the_deployment(tmp_path):
    tiles = [{"worker": "edge", "blocks": [0, 2]}, {"worker": "gpu", "blocks": [2, 4]}]
    codecs = [{"from": "gpu", "to": "edge", "cargo": "error_gradient", "codec": "fp16"}]
    file = document(tmp_path, workers=["edge", "gpu"], tiles=tiles, codecs=codecs)
    deployment = Experiment(edge_config(*CNN, GPU, file)).deployment
    assert (deployment.edge_blocks, deployment.codec, deployment.downlink_codec) == (2, "fp32", "fp16")


def test_a_codec_of_a_file_narrows_no_float64_in_silence(tmp_path):
    wide = [
        'model.factory="tests.support.models.wide:wide"',
        'data.train={factory="tests.support.models.wide:WideDigits"}',
    ]
    raw = ["deployment.codec=raw", "deployment.downlink_codec=raw"]
    tiles = [{"worker": "edge", "blocks": [0, 1]}, {"worker": "gpu", "blocks": [1, 3]}]
    for codec, narrows in (("fp32", True), ("raw", False), ("uniform8", False)):
        codecs = [{"from": "edge", "to": "gpu", "cargo": "feature", "codec": codec}]
        file = document(tmp_path, workers=["edge", "gpu"], tiles=tiles, codecs=codecs)
        if narrows:
            with pytest.raises(ConfigError, match=r"placement\.json: a codec is fp32, which would narrow the float64"):
                placed(GPU, file, *raw, experiment=wide)
        else:
            assert placed(GPU, file, *raw, experiment=wide).codecs[Route("edge", "gpu", Cargo.FEATURE)] == codec


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ((GPU, "placement.edge=0:"), (0, 1, 2, 3)),
        ((GPU, 'placement.edge=["0:1", "3:"]', "placement.gpu=1:3"), (0, 3)),
        ((GPU, "placement.gpu=0:", 'privacy.inputs_to=["gpu"]'), ()),
        ((GPU, "placement.gpu=0:2", "placement.edge=2:", 'privacy.inputs_to=["gpu"]'), (2, 3)),
        ((TWO, "placement.edge=0:1", "placement.near=1:2", "placement.far=2:"), (0,)),
    ],
)
def test_every_valid_placement_can_be_trained_with(more, held):
    assert Experiment(edge_config(*CNN, *more)).held.indices == held


def test_samples_are_on_the_device_alone(tmp_path):
    tiles = [{"worker": "gpu", "blocks": [0, 2]}, {"worker": "edge", "blocks": [2, 4]}]
    for samples in ([32], [8, 32]):
        bounds = zip([0, *samples], samples, strict=False)
        sources = [{"worker": who, "samples": [*rows]} for who, rows in zip(["gpu", "edge"], bounds, strict=False)]
        file = document(tmp_path, workers=["edge", "gpu"], tiles=tiles, sources=sources)
        with pytest.raises(ConfigError, match="gpu is to have samples of its own; in this version all samples are on"):
            Experiment(edge_config(*CNN, GPU, file, 'privacy.inputs_to=["gpu"]'))


def test_a_cut_out_of_range_is_still_the_models_business():
    with pytest.raises(ModelError, match="this model has 4 blocks"):
        placed("deployment.cut=9")
