"""A task of paper 000 as an agent's configuration: `python -m benchmarks.paper000.configuration TASK --data FOLDER`.

By it `edge-agent run --config` trains on all of the data across the task's cut, with the paper's K, 8 bits and feedback, and,
unlike there, with predicted weights where the optimizer has a momentum. The trainer has to allow the networks by `--set
'models.allowed=["shared.model.zoo", "benchmarks.paper000.networks"]'`, and raw inputs, by `--set server.accept_inputs=true`,
for `chair`, whose labels stay on the device.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.paper000.tasks import SIZES, TASKS, Task
from benchmarks.support.arguments import above_zero
from shared.config import toml_value
from shared.errors import IsthmusError

_BATCH_SIZE = 32


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse and print. Exits with the code of an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper000.configuration", description=__doc__)
    add = parser.add_argument
    add("task", choices=TASKS, metavar="TASK", help=f"one of {', '.join(TASKS)}")
    add("--data", type=Path, default=Path(), help="folder of the data, as `benchmarks.paper000` has it (default: this)")
    add("--size", choices=SIZES, default="small", help="of the network (default: %(default)s)")
    add("--epochs", type=above_zero, help="of the training (default: the task's own)")
    chosen = parser.parse_args(arguments)
    task = TASKS[chosen.task]
    epochs = chosen.epochs or task.sizes[chosen.size].epochs
    try:
        print(configuration(task, chosen.size, chosen.data, epochs), end="")
    except IsthmusError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from error


def configuration(task: Task, size: str, folder: Path, epochs: int) -> str:
    """Return the configuration as TOML. folder: of the data, which is read once. Raises DataError."""
    chosen = task.sizes[size]
    steps_per_epoch = len(task.dataset(size, "train", folder)) // _BATCH_SIZE
    schedule = task.recipe(size, 0, epochs, steps_per_epoch).schedule
    sections: dict[str, Mapping[str, Any]] = {
        "model": {
            "factory": chosen.factory,
            "kwargs": {name: value for name, value in chosen.kwargs.items() if value is not None},
            **{name: value for name, value in asdict(task.learning).items() if value},
        },
        "data": {
            "batch_size": _BATCH_SIZE,
            **{
                split: {"factory": task.loader, "kwargs": task.loader_kwargs(size, split, folder.resolve())}
                for split in ("train", "test")
            },
        },
        "training": {
            "epochs": epochs,
            "loss": task.loss,
            "optimizer": chosen.optimizer,
            "schedule": schedule,
        },
        "deployment": {"staleness": task.staleness_of(epochs), "codec": "uniform8"},
    }
    if task.labels_are_private:
        sections["placement"] = {"trainer": f"0:{chosen.cut}", "edge": f"{chosen.cut}:", "labels": "edge"}
        sections["privacy"] = {"inputs_to": ["trainer"]}
    else:
        sections["deployment"] = {"cut": chosen.cut, **sections["deployment"]}
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in keys.items())
        for name, keys in sections.items()
    )


if __name__ == "__main__":
    main()
