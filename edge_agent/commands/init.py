"""`edge-agent init`: five questions, and the two files with which a run of one's own begins."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_agent.late_config import load_edge_config
from isthmus_entry_points import importing
from shared.errors import ConfigError
from shared.files.whole_file import write_together

if TYPE_CHECKING:
    from edge_agent.data_config import DatasetConfig

_EDGE = """\
# What this device trains, and with which trainer. All keys with their defaults: edge-agent config --example

[model]
factory = {model}  # returns the network; both sides import it

[data]  # stays on this device
train = {train}
{test}
[training]
epochs = 10
optimizer = {{ name = "adamw", learning_rate = 1e-3 }}

[deployment]
cut = 1  # blocks that run here; `edge-agent model --config edge.toml` shows them
codec = "fp32"  # "uniform8" sends a quarter of the bytes
staleness = 0  # 0 is exact; 2 to 5 hide the delay of a slow link

[trainer]
address = {address}
{secrets}
[output]
directory = {output}  # gets model.safetensors and summary.json
"""
_TEST = "test = {test}  # evaluated on after each epoch\n"
_EDGE_SECRETS = """\
token_file = "certificates/edge.token"

[tls]
certificate = "certificates/edge.pem"
key = "certificates/edge.key"
ca = "certificates/ca.pem"
"""
_TRAINER = """\
# What the trainer serves. All keys with their defaults: cloud-trainer config --example

[server]
listen = {listen}

[models]
allowed = [{package}]  # what a device may have the trainer import
{secrets}"""
_TRAINER_SECRETS = """
[tls]
certificate = "certificates/trainer.pem"
key = "certificates/trainer.key"
ca = "certificates/ca.pem"

[auth]
tokens = "certificates/tokens.toml"
"""
_CLOSING = """\
cloud-trainer certs certificates --host {host}
cloud-trainer token edge --file certificates/tokens.toml --out certificates/edge.token
"""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def init(
    directory: Annotated[Path, typer.Argument(help="Folder for edge.toml and trainer.toml.")] = Path(),
    model: Annotated[str | None, typer.Option(help="The network: package.module:function.")] = None,
    train: Annotated[str | None, typer.Option(help="The samples to train on: package.module:factory.")] = None,
    test: Annotated[str | None, typer.Option(help="The samples to evaluate on; empty for none.")] = None,
    trainer: Annotated[str | None, typer.Option(help="The trainer: host:port.")] = None,
    output: Annotated[str | None, typer.Option(help="Folder of the results.")] = None,
) -> None:
    """Ask five questions, and write edge.toml and trainer.toml with comments. An option answers its question."""
    files = {name: directory / name for name in ("edge.toml", "trainer.toml")}
    if there := [path for path in files.values() if path.exists()]:
        raise ConfigError(f"{there[0]} is there already; name another folder, or move it away")
    with importing("edge-agent"):
        from shared.config import toml_value

    given = load_edge_config(None, None, environ={})
    model = _answered("model", "The network, as package.module:function", model, given.model.factory)
    train = _answered("train", "The samples to train on, as package.module:factory", train, given.data.train.factory)
    of_digits = given.data.test.factory if given.data.test is not None and train == given.data.train.factory else ""
    test = _answered("test", "The samples to evaluate on (nothing: none)", test, of_digits)
    trainer = _answered("trainer", "The trainer, as host:port", trainer, given.trainer.address)
    output = _answered("output", "Folder of the results", output, "run")
    flags = [f"model.factory={toml_value(model)}", f"data.train.factory={toml_value(train)}"]
    flags += [f"data.test={{factory={toml_value(test)}}}"] if test else []
    load_edge_config(None, [*flags, f"trainer.address={toml_value(trainer)}"], environ={})
    host, _, port = trainer.rpartition(":")
    is_near = host in _LOOPBACK
    everywhere = "[::]" if host.startswith("[") else "0.0.0.0"
    edge = _EDGE.format(
        model=toml_value(model),
        train=_dataset(train, given.data.train),
        test=_TEST.format(test=_dataset(test, given.data.test)) if test else "",
        address=toml_value(trainer),
        secrets="" if is_near else _EDGE_SECRETS,
        output=toml_value(output),
    )
    served = _TRAINER.format(
        listen=toml_value(trainer if is_near else f"{everywhere}:{port}"),
        package=toml_value(model.partition(":")[0]),
        secrets="" if is_near else _TRAINER_SECRETS,
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise ConfigError(f"folder {directory} cannot be made: {cause.strerror}") from cause
    write_together({path: _writing(text) for path, text in zip(files.values(), (edge, served), strict=True)})
    closing = "" if is_near else _CLOSING.format(host=host.strip("[]"))
    package = model.partition(":")[0].partition(".")[0]
    module, path = ("", "") if find_spec(package) else (f", beside {package}", "PYTHONPATH=. ")  # installed, or a file
    typer.echo(
        f"beside the GPU, with {files['trainer.toml']}{module}:\n{closing}{path}cloud-trainer serve --config trainer.toml\n"
    )
    copied = "" if is_near else ", and what edge.toml names of certificates/"
    typer.echo(f"on this device, with {files['edge.toml']}{module}{copied}:")
    typer.echo(f"{path}edge-agent doctor --config edge.toml{os.linesep}{path}edge-agent run --config edge.toml")


def _answered(option: str, question: str, answer: str | None, default: str) -> str:
    """Return what an option says, or else what a person answers. Raises ConfigError where nobody does."""
    if answer is not None:
        return answer
    try:
        return str(typer.prompt(question, default=default, err=True))
    except typer.Abort:
        raise ConfigError(f"nobody answers what --{option} is; give the option") from None


def _dataset(factory: str, built_in: "DatasetConfig | None") -> str:
    """Return a data set in TOML: with the arguments of ours, where that was chosen."""
    from shared.config import toml_value

    kwargs = built_in.kwargs if built_in is not None and built_in.factory == factory else None
    return toml_value({"factory": factory, **({"kwargs": kwargs} if kwargs else {})})


def _writing(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)
