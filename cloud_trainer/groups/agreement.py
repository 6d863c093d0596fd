"""The agreement of a group: what the first member brings, and every other has to have alike."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from shared.bounds import is_step
from shared.config import toml_value
from shared.errors import ConfigError, ProtocolError, StorageError
from shared.placement import AGENT, Cargo, Placement, Route
from shared.training.recipe import Recipe
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_OF_THE_FIRST = {"steps_per_epoch", "total_steps"}
"""Keys of a recipe that follow from a member's data; those of the first member hold for the group."""
_PROTOCOL = "protocol version"
_ALIKE = "all members of a group have the same"
_UPGRADED = "all go on with the version of Isthmus that began it, or begin a group of another group.name"
"""Ways on for a group that was begun under another protocol, by which a step may have another result."""


class Agreement(NamedTuple):
    """The training of a group."""

    request: pb.OpenSessionRequest
    """The request that opened the first member's session."""
    recipe: Recipe
    staleness: int
    """K, by which a member may be ahead of the group."""
    blocks: tuple[int, ...]
    """Blocks that training changes and this trainer owns."""
    weights_codec: str = "raw"
    """Codec of what members lack of the weights."""

    @property
    def steps(self) -> int:
        """Return the steps that the group does."""
        return self.request.group.steps

    @classmethod
    def of(cls, request: pb.OpenSessionRequest, recipe: Recipe, placement: Placement, changing: Sequence[int]) -> Self:
        """Begin an agreement with a session of a member under a placement. changing: the blocks that training changes.

        Raises ConfigError for what no group can do, and ProtocolError for a number of steps that cannot be.
        """
        if not request.group.steps or not is_step(request.group.steps):
            raise ProtocolError(f"a group cannot do {request.group.steps} steps")
        digests, count = len(request.group.frozen_digests), len(request.block_names)
        if digests != count:
            raise ProtocolError(f"a member tells {digests} digests of parameters that do not learn, of {count} blocks")
        if recipe.accumulate_batches > 1:
            raise ConfigError(
                "training.accumulate_batches is more than 1; a group updates after each batch of its members"
            )
        blocks = tuple(block for block in changing if placement.owner(block) == request.worker)
        if recipe.model_clip_norm is not None and len(blocks) < len(changing):
            raise ConfigError(
                'training.optimizer.clip is "model", whose norm is that of all blocks, and a group on several trainers has '
                'these nowhere together; use "block", or one trainer'
            )
        weights_codec = placement.codecs.get(Route(request.worker, AGENT, Cargo.WEIGHTS), "raw")
        return cls(request, recipe, placement.staleness, blocks, weights_codec)

    def lasting(self, steps: int) -> Self:
        """Return the same of so many steps."""
        request = pb.OpenSessionRequest()
        request.CopyFrom(self.request)
        request.group.steps = steps
        return self._replace(request=request)

    def check(self, group: str, other: Self) -> None:
        """Refuse a member that would train something else. Raises ConfigError, which names the first difference."""
        theirs, ours = other._told(), self._told()
        for what, value in ours.items():
            if theirs.get(what) != value:
                raise ConfigError(
                    f"group {group!r} trains with {what} {_shown(what, value)}, and this member has "
                    f"{_shown(what, theirs.get(what))}; {_UPGRADED if what == _PROTOCOL else _ALIKE}"
                )

    def _told(self) -> dict[str, Any]:
        model = self.request.model
        recipe = self.recipe.model_dump(mode="json", exclude=_OF_THE_FIRST)
        optimizer, schedule = recipe.pop("optimizer"), recipe.pop("schedule")
        return {
            _PROTOCOL: self.request.protocol_version,
            "model.factory": model.factory,
            "model.kwargs": model.kwargs_json,
            "deployment.staleness": self.staleness,
            "group.weights_codec": self.weights_codec,
            "the blocks": list(self.request.block_names),
            "the blocks at this trainer": list(self.blocks),
            **{f"training.optimizer.{key}": value for key, value in optimizer.items()},
            **{f"training.schedule.{key}": value for key, value in schedule.items()},
            **{f"training.{key}": value for key, value in recipe.items()},
            **{
                f"parameters that do not learn, in block {block}, of the digest": digest
                for block, digest in enumerate(self.request.group.frozen_digests)
            },
        }

    @property
    def document(self) -> dict[str, Any]:
        """Return it as JSON, for a checkpoint."""
        return {
            "request": MessageToDict(self.request),
            "staleness": self.staleness,
            "blocks": list(self.blocks),
            "weights_codec": self.weights_codec,
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Read what `document` returned. Raises StorageError."""
        try:
            request = ParseDict(document["request"], pb.OpenSessionRequest())
            recipe = Recipe.model_validate_json(request.recipe_json)
            staleness, blocks = int(document["staleness"]), tuple(map(int, document["blocks"]))
            return cls(request, recipe, staleness, blocks, str(document.get("weights_codec", "raw")))
        except (KeyError, TypeError, ValueError, ParseError) as cause:
            raise StorageError(f"a checkpoint does not say what its group trains: {cause}") from cause


def _shown(what: str, value: Any) -> str:
    """Show the value of a key as a configuration has it; None is a key that it leaves out."""
    if value is None:
        return "left out"
    text = toml_value(_given(json.loads(value) if what == "model.kwargs" else value))
    return text if len(text) <= 80 else f"{text[:79]}…"


def _given(value: Any) -> Any:
    """Return a value without what is left out of it, for which TOML has no word."""
    match value:
        case dict():
            return {key: _given(item) for key, item in value.items() if item is not None}
        case list():
            return [_given(item) for item in value if item is not None]
        case _:
            return value
