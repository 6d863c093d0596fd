"""The engine's input: codecs that the profile has measured, and a warning about those that it has not."""

import json

import numpy as np
import pytest
from structlog.testing import capture_logs

from edge_agent.adaptation.engine_inputs import load_run_profile, question_of, uncalibrated_bits
from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import ProfiledBlock, pair_profile, profile_to_json
from edge_agent.profiling.codec_times import narrow_codec
from shared.errors import PlanError
from shared.registry import codec_spec
from tests.support.experiments import flags
from tests.support.planning.cases import small_profile
from tests.support.running import edge_config


@pytest.fixture
def write_profile(tmp_path):
    """Write a profile of the tests' small network, measured with codecs of one family, and return its path."""

    def write(family):
        chain = Experiment(edge_config(*flags("cnn", "sgd"))).chain
        count, batch_size = len(chain.blocks), chain.features[0][0].shape[0]
        column = (None, *(1.0 for _ in range(count)))
        profile = pair_profile(
            model="cnn",
            batch_size=batch_size,
            blocks=tuple(ProfiledBlock(block.name, 1.0) for block in chain.blocks),
            feature_bytes=column,
            gradient_bytes=column,
            edge_seconds=column,
            cloud_seconds=column,
            encode=None,
            min_bits=None,
            max_staleness=2,
            codec_family=family,
        )
        path = tmp_path / "profile.json"
        path.write_text(profile_to_json(profile))
        return path

    return write


@pytest.mark.parametrize(
    ("family", "codec", "are_others"),
    [
        ("uniform", "fp32", False),
        ("uniform", "uniform4", False),
        ("uniform", "uniform8-channel", True),
        ("uniform-channel", "uniform8-channel", False),
        ("uniform-channel", "fp32", True),
    ],
)
def test_a_profile_of_other_codecs_causes_a_warning_and_its_min_bits_do_not_count(
    write_profile, family, codec, are_others
):
    path = write_profile(family)
    experiment = Experiment(edge_config(*flags("cnn", "sgd"), f"engine.profile={path}", f"deployment.codec={codec}"))
    with capture_logs() as logs:
        profile = load_run_profile(experiment)
    warnings = [log for log in logs if "codecs of another family" in log["event"]]
    assert [log["bits"] for log in warnings] == ([[8]] if are_others else [])
    assert (8 in question_of(experiment, profile).space.uncalibrated_bits) is are_others


@pytest.mark.parametrize(("others", "names"), [({}, ("edge", "trainer")), ({"trainer": "gpu"}, None)])
def test_a_file_of_more_workers_is_for_those_of_them_that_there_are(write_profile, others, names):
    path = write_profile("uniform")
    document = json.loads(path.read_text())
    document["workers"].append(document["workers"][1] | {"name": "far"})
    document["workers"][1]["name"] = others.get("trainer", "trainer")
    document["links"] = []
    path.write_text(json.dumps(document))
    experiment = Experiment(edge_config(*flags("cnn", "sgd"), f"engine.profile={path}"))
    if names is None:
        with pytest.raises(PlanError, match="the workers are edge, gpu, far, and the placement has two"):
            load_run_profile(experiment)
    else:
        assert load_run_profile(experiment).names == names


def test_every_family_has_32_bits():
    assert 32 not in uncalibrated_bits(small_profile(codec_family="signs"), "fp32")


@pytest.mark.parametrize(
    ("bits", "codec", "timed", "family"),
    [
        ("[8, 32]", "fp32", "uniform8", "uniform"),
        ("[2, 4, 32]", "fp32", "uniform4", "uniform"),
        ("[8, 32]", "uniform2-channel", "uniform8-channel", "uniform-channel"),
        ("[32]", "fp32", "uniform8", "uniform"),
        ("[2, 4, 32]", "mbq2", "mbq4", "mbq"),
        ("[2, 8]", "mbq2", "uniform8", "uniform"),
        ("[2, 4]", '[[0, "mbq2"], [3, "fp32"]]', "mbq4", "mbq"),
    ],
)
def test_the_codecs_that_are_deployed_are_timed(bits, codec, timed, family):
    config = edge_config(*flags("cnn", "sgd"), f"engine.bits={bits}", f"deployment.codec={codec}")
    assert narrow_codec(config) == timed
    assert codec_spec(timed).family == family


def test_cuts_that_would_send_forbidden_labels_are_not_chosen(write_profile, tmp_path):
    engine = f"engine.profile={write_profile('uniform')}"
    anywhere = load_run_profile(Experiment(edge_config(*flags("cnn", "sgd"), engine)))
    assert np.isfinite(anywhere.workers[0].replayed[0, 1:]).all()
    tiles = [{"worker": "edge", "blocks": [0, 4], "samples": [0, 32]}]
    alone = {"schema": "isthmus.placement/v1", "workers": ["edge", "trainer"], "tiles": tiles, "labels": "edge"}
    (tmp_path / "placement.json").write_text(json.dumps(alone))
    stays = f"placement.file={tmp_path / 'placement.json'}"
    here = load_run_profile(Experiment(edge_config(*flags("cnn", "sgd"), engine, stays)))
    permitted = np.isfinite(here.workers[0].replayed[0])
    assert not permitted[:-1].any()
    assert permitted[-1]
