"""Loading a configuration: the source that wins, and the sentences for errors."""

from pathlib import Path

import pytest

from cloud_trainer.config import TrainerConfig
from edge_agent.config import EdgeConfig
from shared.config import Config, load_config
from shared.errors import ConfigError

ROOTS: list[type[Config]] = [EdgeConfig, TrainerConfig]
STALENESS = "an integer of 0 or more, or a list of [from, value] pairs that begins with 0"


def load_edge(tmp_path: Path, file_text: str = "", overrides=(), environ=None) -> EdgeConfig:
    path = tmp_path / "edge.toml"
    path.write_text(file_text)
    return load_config(EdgeConfig, path, overrides, environ or {})


def complaint(tmp_path: Path, file_text: str = "", overrides=(), environ=None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_edge(tmp_path, file_text, overrides, environ)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence.replace(str(tmp_path / "edge.toml"), "FILE")


@pytest.mark.parametrize("cls", ROOTS)
def test_without_any_source_the_defaults_hold(cls: type[Config]):
    assert load_config(cls, None, environ={"PATH": "/bin", "HOME": "/root"}) == cls()


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path):
    file_text = "[data]\nbatch_size = 1\n[deployment]\nstaleness = 1\n[training]\nepochs = 1"
    environ = {"EDGE_AGENT_DEPLOYMENT__STALENESS": "2", "EDGE_AGENT_TRAINING__EPOCHS": "2"}
    config = load_edge(tmp_path, file_text, ["training.epochs=9", "training.epochs=3"], environ)
    assert config.training.seed == 0
    assert config.data.batch_size == 1
    assert config.deployment.staleness == 2
    assert config.training.epochs == 3


@pytest.mark.parametrize(
    ("override", "read", "expected"),
    [
        ("log.level=debug", lambda c: c.log.level, "debug"),
        ('log.level="debug"', lambda c: c.log.level, "debug"),
        ("trainer.connect_timeout_seconds=3", lambda c: c.trainer.connect_timeout_seconds, 3.0),
        ("trainer.address=[::1]:7", lambda c: c.trainer.address, "[::1]:7"),
        ("data.drop_last=false", lambda c: c.data.drop_last, False),
        ("output.directory=2026-01-31", lambda c: c.output.directory, Path("2026-01-31")),
        ("output.directory=7", lambda c: c.output.directory, Path("7")),
        ("output.directory=a=b", lambda c: c.output.directory, Path("a=b")),
        ("model.kwargs={ width = 16, name = 'x' }", lambda c: c.model.kwargs, {"width": 16, "name": "x"}),
        ("model.kwargs.since=2026-01-31", lambda c: c.model.kwargs, {"depth": 2, "since": "2026-01-31"}),
        ("model.kwargs.width=16", lambda c: c.model.kwargs, {"depth": 2, "width": 16}),
        ("training.optimizer.betas=[0.5, 0.75]", lambda c: c.training.optimizer.betas, (0.5, 0.75)),
    ],
)
def test_a_flag_and_a_variable_are_read_alike(tmp_path: Path, override: str, read, expected):
    file_text = "[training.optimizer]\nname = 'adam'\n[model]\nkwargs.depth = 2"
    assert read(load_edge(tmp_path, file_text, [override])) == expected
    dotted, _, text = override.partition("=")
    variable = "EDGE_AGENT_" + dotted.upper().replace(".", "__")
    assert read(load_edge(tmp_path, file_text, environ={variable: text})) == expected


def test_a_table_is_replaced_whole_by_a_flag_and_completed_by_its_keys(tmp_path: Path):
    file_text = "[data.train]\nfactory = 'a.b:c'\nkwargs = { path = '/x', limit = 3 }"
    assert load_edge(tmp_path, file_text, ["data.train.kwargs={ path = '/y' }"]).data.train.kwargs == {"path": "/y"}
    assert load_edge(tmp_path, file_text, ["data.train.kwargs.limit=4"]).data.train.kwargs == {"path": "/x", "limit": 4}


def test_another_training_set_is_not_evaluated_on_the_default_test_set(tmp_path: Path):
    train = "[data.train]\nfactory = 'a.b:c'\n"
    assert load_edge(tmp_path, "[data]\nworkers = 1").data.test is not None
    assert load_edge(tmp_path, train).data.test is None
    assert load_edge(tmp_path, train + "[data.test]\nfactory = 'a.b:d'").data.test.factory == "a.b:d"


@pytest.mark.parametrize(
    ("file_text", "sentence"),
    [
        ("[deployment]\nstaleness = -1", f"FILE: deployment.staleness is -1; it must be {STALENESS}"),
        ("[deployment]\nstaleness = true", f"FILE: deployment.staleness is true; it must be {STALENESS}"),
        ("[deployment]\ncut = 0", "FILE: deployment.cut is 0; it must be an integer of 1 or more"),
        ("[training]\nmax_steps = 1.5", "FILE: training.max_steps is 1.5; it must be an integer of 1 or more"),
        ("[data]\ndrop_last = 1", "FILE: data.drop_last is 1; it must be true or false"),
        (
            "[log]\nlevel = 'loud'",
            'FILE: log.level is "loud"; it must be one of debug, info, warning, error',
        ),
        (
            "[link]\nchunk_bytes = 1023",
            "FILE: link.chunk_bytes is 1023; it must be an integer of 1024 to 4_194_304",
        ),
        (
            "[link]\nchunk_bytes = 2048\nwindow_bytes = 2047",
            "FILE: link: window_bytes is 2047; it must hold a chunk, 2048 bytes or more",
        ),
        (
            "[link]\nkeepalive_seconds = inf",
            "FILE: link.keepalive_seconds is inf; it must be a number above 0",
        ),
        (
            "[trainer]\naddress = 'gpu'",
            'FILE: trainer.address is "gpu"; it must be host:port with a port of 1 to 65535',
        ),
        (
            "[trainer]\naddress = 'gpu:0'",
            'FILE: trainer.address is "gpu:0"; it must be host:port with a port of 1 to 65535',
        ),
        (
            "[compute]\ndevice = 'gpu'",
            'FILE: compute.device is "gpu"; it must be auto, cpu, cuda or cuda:N',
        ),
        (
            "[training.optimizer]\nname = 'adam'\nbetas = [0.9, 1.0]",
            "FILE: training.optimizer.betas.1 is 1.0; it must be a number of 0 or more and below 1",
        ),
        (
            "[training.optimizer]\nnesterov = true",
            "FILE: training.optimizer: nesterov is true but momentum is 0; it needs a momentum above 0",
        ),
        (
            "[training.optimizer]\nname = 'adam'\nmomentum = 0.9",
            "FILE: training.optimizer: adam has no momentum, which belongs to sgd, rmsprop; "
            "leave it out or choose one of these",
        ),
        ("trainer = 5", "FILE: trainer is 5; it must be a table"),
        ("training.optimizer = 5", "FILE: training.optimizer is 5; it must be a name or a table"),
        ("training.metrics = [5]", "FILE: training.metrics.0 is 5; it must be a name or a table"),
        (
            "training.optimizer = 'Adam'",
            "FILE: training.optimizer: name is 'Adam'; it must be one of sgd, adam, adamw, rmsprop, adagrad, adafactor, lion, "
            "or package.module:class, as torch.optim:NAdam",
        ),
        (
            "training.optimizer = 'torch.optim:NAdam'",
            "FILE: training.optimizer: torch.optim:NAdam is given without a learning_rate; say learning_rate = … beside its "
            "name",
        ),
        ("training.schedule = 'multistep'", "FILE: training.schedule: a multistep schedule needs milestones"),
        (
            "data.train = 'photos'",
            'FILE: data.train.factory is "photos"; it must be written as package.module:factory',
        ),
        ("[output]\ndirectory = 3", "FILE: output.directory is 3; it must be a path"),
        ("[deploymnet]\ncut = 1", "FILE: unknown key deploymnet; did you mean deployment?"),
        ("[deployment]\nstalenes = 1", "FILE: unknown key deployment.stalenes; did you mean deployment.staleness?"),
        (
            "[training]\nlearning_rate = 1",
            "FILE: unknown key training.learning_rate; did you mean training.optimizer.learning_rate?",
        ),
        ("batch_size = 1", "FILE: unknown key batch_size; did you mean data.batch_size?"),
        ("[training]\nepoch = 1", "FILE: unknown key training.epoch; did you mean training.epochs?"),
        (
            "[data]\nshuffle = false",
            "FILE: unknown key data.shuffle; data has the keys train, test, calibration, collate, longest, "
            "batch_size, drop_last, steps_per_epoch, shard, sampler, sample_weights, batch_sampler, "
            "batch_transform, on_error, max_skipped, ahead, workers",
        ),
        ("[log]\ncolour = true", "FILE: unknown key log.colour; log has the keys level, format"),
        (
            "[data.train]\nkwargs = {}",
            "FILE: data.train.factory is missing; it must be written as package.module:factory",
        ),
        (
            "[data]\nbatch_size = 0\n[deployment]\nstaleness = -1\n[log]\nlevel = 1",
            "FILE: data.batch_size is 0; it must be an integer of 1 or more (2 more settings are wrong)",
        ),
        (
            "[data]\nbatch_size = 0\nworkers = -1",
            "FILE: data.batch_size is 0; it must be an integer of 1 or more (1 more setting is wrong)",
        ),
        ("[data\n", "FILE is not valid TOML: Expected ']' at the end of a table declaration (at line 1, column 6)"),
    ],
)
def test_an_error_in_the_file_is_one_sentence(tmp_path: Path, file_text: str, sentence: str):
    assert complaint(tmp_path, file_text) == sentence


@pytest.mark.parametrize(
    ("key", "text", "named"),
    [
        ("training.optimizer", "lion", "name"),
        ("training.schedule", "cosine", "name"),
        ("training.loss", "mse", "name"),
        ("training.early_stop", "accuracy", "metric"),
        ("training.keep_best", "accuracy", "metric"),
        ("training.start_from", "a/net.pth", "path"),
        ("data.train", "mine:Readings", "factory"),
        ("data.test", "mine:Readings", "factory"),
    ],
)
def test_a_name_alone_is_a_table_with_that_name(tmp_path: Path, key: str, text: str, named: str):
    variable = {"EDGE_AGENT_" + key.upper().replace(".", "__"): text}
    alone = load_edge(tmp_path, f"{key} = '{text}'")
    assert alone == load_edge(tmp_path, f"[{key}]\n{named} = '{text}'") != load_edge(tmp_path)
    assert alone == load_edge(tmp_path, "", [f"{key}={text}"]) == load_edge(tmp_path, "", environ=variable)


def test_keys_of_another_source_complete_a_name_alone(tmp_path: Path):
    config = load_edge(
        tmp_path,
        "[training]\noptimizer = 'adam'\nschedule = 'cosine'",
        ["training.optimizer.weight_decay=0.5", "training.schedule=linear"],
        {"EDGE_AGENT_TRAINING__SCHEDULE__FLOOR": "0.5", "EDGE_AGENT_TRAINING__OPTIMIZER__EPS": "0.5"},
    ).training
    assert (config.optimizer.name, config.optimizer.weight_decay, config.optimizer.eps) == ("adam", 0.5, 0.5)
    assert (config.schedule.name, config.schedule.floor) == ("linear", 0.0)


def test_the_sentence_names_the_source_that_won(tmp_path: Path):
    good_file = "[deployment]\nstaleness = 3"
    variable = {"EDGE_AGENT_DEPLOYMENT__STALENESS": "-1"}
    must = f"deployment.staleness is -1; it must be {STALENESS}"
    assert complaint(tmp_path, good_file, environ=variable) == f"EDGE_AGENT_DEPLOYMENT__STALENESS: {must}"
    assert (
        complaint(tmp_path, good_file, ["deployment.staleness=-1"], {"EDGE_AGENT_DEPLOYMENT__STALENESS": "4"})
        == f"flag 'deployment.staleness=-1': {must}"
    )
    assert complaint(tmp_path, "[deployment]\nstaleness = -1", ["deployment.cut=2"]) == f"FILE: {must}"
    assert complaint(tmp_path, good_file, ["deployment.staleness.x=1"]).startswith("flag 'deployment.staleness.x=1': ")


def test_a_rule_over_several_keys_names_the_source_that_broke_it(tmp_path: Path):
    file_text = "[training.optimizer]\nmomentum = 0.9"
    assert complaint(tmp_path, file_text, ["training.optimizer.name=adam"]).startswith(
        "flag 'training.optimizer.name=adam': training.optimizer: adam has no momentum"
    )


@pytest.mark.parametrize(
    ("environ", "overrides", "sentence"),
    [
        (
            {"EDGE_AGENT_LOG__LEVLE": "info"},
            [],
            "EDGE_AGENT_LOG__LEVLE: unknown key log.levle; did you mean log.level?",
        ),
        (
            {"EDGE_AGENT_COLOUR": "x"},
            [],
            "EDGE_AGENT_COLOUR: unknown key colour; there are the keys trainer, trainers, tls, model, ",
        ),
        ({}, ["log.levle=info"], "flag 'log.levle=info': unknown key log.levle; did you mean log.level?"),
        ({}, ["verbose"], "flag 'verbose' sets nothing; write it as section.key=value"),
        (
            {"EDGE_AGENT_OUTPUT__DIRECTORY": "a\udcff"},
            [],
            "EDGE_AGENT_OUTPUT__DIRECTORY: the value is not text in UTF-8",
        ),
    ],
)
def test_an_error_in_a_variable_or_flag_is_one_sentence(tmp_path: Path, environ, overrides, sentence: str):
    assert complaint(tmp_path, "", overrides, environ).startswith(sentence)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError, match=f"configuration file {missing} does not exist"):
        load_config(EdgeConfig, missing, environ={})
    with pytest.raises(ConfigError, match=f"configuration file {tmp_path} cannot be read: Is a directory"):
        load_config(EdgeConfig, tmp_path, environ={})
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not a text file in UTF-8"):
        load_config(EdgeConfig, binary, environ={})


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        EdgeConfig().deployment.staleness = 3  # type: ignore[misc]
