"""`edge-agent replay`: repeats a recorded run and says whether it ends with the same weights."""

import json
from pathlib import Path
from typing import Annotated

import typer

from isthmus_entry_points import importing
from shared.errors import ConfigError
from shared.files.json_file import read_json


def replay(
    run: Annotated[
        Path, typer.Argument(help="Folder of the run's results (output.directory), with output.record set.")
    ],
) -> None:
    """Repeat a recorded run in one process on the CPU, and compare its losses and weights with the run's, bit for bit.

    Changes of placement, lossy codecs, K > 0 and resumes are repeated as they were. It needs the data set, and a processor of
    the kind that every worker had, with as many threads (compute.threads). Ends with code 0 where all bits are the same, and
    with 18 where they are not, saying at which step or block they part.
    """
    with importing("edge-agent"):
        from edge_agent.replaying.replay import replay as repeat
        from edge_agent.replaying.run_record import read_record, record_path
        from shared.training.device import prepare_process

    summary = read_json(run / "summary.json", "summary", ConfigError)
    if not isinstance(summary, dict) or not isinstance(session := summary.get("session"), str) or not session.isalnum():
        raise ConfigError(f"{run / 'summary.json'} names no session: {json.dumps(summary)[:80]}")
    record = read_record(record_path(run, session))
    prepare_process(record.session.configuration.compute.threads)
    steps = repeat(
        record, run / "model.safetensors", lambda step: typer.echo(f"step {step} of {record.steps}", err=True)
    )
    typer.echo(f"{steps} steps, and the same weights to the last bit")
