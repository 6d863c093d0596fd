"""The configuration of an optimizer: one flat section, made of the settings of all that are registered.

A key means the same with every optimizer that has it. Where their defaults differ, the key is left out by default, and
then each optimizer's own holds.
"""

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, JsonValue, PositiveFloat, create_model, model_validator
from pydantic.fields import FieldInfo

from shared.config import ShortSection, toml_value
from shared.config.arguments import check_arguments
from shared.config.choices import refuse_unused
from shared.registry.optimizers.registry import OPTIMIZERS
from shared.registry.optimizers.spec import OptimizerGroup, OptimizerSettings, OptimizerSpec

MAX_GROUPS = 20
_OWN_KEYS = {
    name: spec.settings.model_fields.keys() - OptimizerSettings.model_fields.keys() for name, spec in OPTIMIZERS.items()
}
_CLASS = "package.module:class"
_OWN_KEYS[_CLASS] = {"kwargs"}
_NOT_ARGUMENTS = {
    "lr": "say learning_rate beside it",
    "weight_decay": "say weight_decay beside it",
    **dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), "every device has the same operations"),
}


class NamedSettings(OptimizerSettings):
    """The settings of a class that is named by its place."""

    kwargs: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the class."""


def _arguments(settings: NamedSettings) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in settings.kwargs.items()}


class _Chosen(ShortSection):
    """The checks of the section as a whole."""

    name: str
    kwargs: dict[str, JsonValue]
    clip: str
    clip_norm: float | None

    @classmethod
    def describe_key(cls, key: str) -> str | None:
        """See `Section.describe_key`; of a key that some optimizers have, with their names."""
        if (own := super().describe_key(key)) is not None:
            return own
        having = _having(key)
        fields = having or {name: spec.settings.model_fields[key] for name, spec in OPTIMIZERS.items()}
        text = (OPTIMIZERS[next(iter(fields))].settings.describe_key(key) or "").rstrip(".")
        users: dict[str, list[str]] = {}
        for name, field in fields.items():
            users.setdefault(toml_value(field.default), []).append(name)
        differing = "; ".join(f"{value} with {', '.join(names)}" for value, names in users.items())
        some = f" ({', '.join(having)})" if having else ""
        return f"{text}{some}." + (f" Left out, {differing}." if len(users) > 1 else "")

    @model_validator(mode="after")
    def _keys_suit_the_optimizer(self) -> Self:
        if self.name not in OPTIMIZERS and ":" not in self.name:
            known = ", ".join(OPTIMIZERS)
            raise ValueError(f"name is {self.name!r}; it must be one of {known}, or {_CLASS}, as torch.optim:NAdam")
        if self.name in OPTIMIZERS:
            refuse_unused(self, self.name, _OWN_KEYS)
        elif given := self._given_of_known():
            raise ValueError(f"{self.name} has its arguments in kwargs; say kwargs = {toml_value(given)}")
        check_arguments(f"optimizer {self.name!r}", self.kwargs)
        if (wrong := next(iter(self.kwargs.keys() & _NOT_ARGUMENTS.keys()), None)) is not None:
            raise ValueError(f"kwargs of optimizer {self.name!r} have {wrong}; leave it out, {_NOT_ARGUMENTS[wrong]}")
        if self.name not in OPTIMIZERS and "learning_rate" not in self.model_fields_set:
            raise ValueError(f"{self.name} is given without a learning_rate; say learning_rate = … beside its name")
        settings_of(self)
        if self.clip == "model" and self.clip_norm is None:
            raise ValueError('clip is "model", and there is no norm to clip to; set clip_norm, or leave clip out')
        return self

    def _given_of_known(self) -> dict[str, Any]:
        """Return the keys, not at their defaults, that registered optimizers alone have."""
        fields = {key: field for key, field in type(self).model_fields.items() if _having(key)}
        return {key: value for key, field in fields.items() if (value := getattr(self, key)) != field.default}


def _own_rate(given: dict[str, Any]) -> float:
    """Return the rate of an optimizer for which none is given."""
    settings = OPTIMIZERS[given["name"]].settings if given.get("name") in OPTIMIZERS else OptimizerSettings
    rate: float = settings.model_fields["learning_rate"].default
    return rate


def _fields() -> dict[str, Any]:
    """Build the section's fields: name, those of every optimizer, clipping, groups, and those of some optimizers."""
    name = Field(
        next(iter(OPTIMIZERS)),
        description="The optimizer. Any class of torch.optim or of the user's own may be named that updates each parameter by "
        "itself; each trainer must allow it.",
        json_schema_extra={"allowed": f"one of {', '.join(OPTIMIZERS)}, or {_CLASS}"},
    )
    kwargs: Any = Field({}, description=f"Keyword arguments of the class, where name is {_CLASS}.")
    clip_norm = Field(
        None,
        examples=[1.0],
        description="Largest norm of a gradient; a longer one is scaled down to it.",
    )
    clip = Field(
        "block",
        description='What clip_norm bounds: "block" the gradient of each block by itself, "model" that of all blocks, as '
        'torch.nn.utils.clip_grad_norm_ does. With "model" the owners of blocks tell each other the norms of their gradients.',
    )
    groups = Field(
        (),
        strict=False,
        max_length=MAX_GROUPS,
        examples=[[{"match": ["*.bias", "*norm*"], "weight_decay": 0.0}]],
        description="Parameters with a rate or a weight decay of their own: each group has their names (match), and "
        "learning_rate, weight_decay or both. A parameter that fits several groups is in the first.",
    )
    fields: dict[str, Any] = {
        "name": (str, name),
        "kwargs": (dict[str, JsonValue], kwargs),
        **{key: (field.annotation, field) for key, field in OptimizerSettings.model_fields.items()},
        "learning_rate": (PositiveFloat, Field(default_factory=_own_rate)),
        "clip_norm": (PositiveFloat | None, clip_norm),
        "clip": (Literal["block", "model"], clip),
        "groups": (tuple[OptimizerGroup, ...], groups),
    }
    for spec in OPTIMIZERS.values():
        for key in spec.settings.model_fields:
            if key not in fields:
                fields[key] = _shared_field(key)
    return fields


def _shared_field(key: str) -> tuple[Any, Any]:
    """The type and field of a key that some optimizers have."""
    first, *others = _having(key).values()
    if all(field.default == first.default for field in others):
        return first.rebuild_annotation(), Field(first.default)
    return first.rebuild_annotation() | None, Field(None, examples=[first.default])


def _having(key: str) -> dict[str, FieldInfo]:
    """The field of this key of each optimizer that has it."""
    return {name: spec.settings.model_fields[key] for name, spec in OPTIMIZERS.items() if key in _OWN_KEYS[name]}


if TYPE_CHECKING:

    class OptimizerConfig(_Chosen, OptimizerSettings):
        """The name of the optimizer, and its settings."""

        clip_norm: float | None
        kwargs: dict[str, JsonValue]
        clip: Literal["block", "model"]
        groups: tuple[OptimizerGroup, ...]

        def __init__(self, **keys: Any) -> None: ...

else:
    OptimizerConfig = create_model("OptimizerConfig", __base__=_Chosen, __module__=__name__, **_fields())


def base_rates(config: OptimizerConfig) -> list[float]:
    """List the base rates: of the parameters in no group, and of each group."""
    rates = [config.learning_rate]
    for group in config.groups:
        rates.append(config.learning_rate if group.learning_rate is None else group.learning_rate)
    return rates


def spec_of(config: _Chosen) -> OptimizerSpec[Any]:
    """Return the spec of the chosen optimizer."""
    if (known := OPTIMIZERS.get(config.name)) is not None:
        return known
    return OptimizerSpec(config.name, NamedSettings, config.name, _arguments, state=None, is_elementwise=False)


def settings_of(config: _Chosen) -> OptimizerSettings:
    """Return the settings of the chosen optimizer. Omitted ones are at its own default."""
    settings: type[OptimizerSettings] = spec_of(config).settings
    given: dict[str, Any] = {key: getattr(config, key) for key in settings.model_fields}
    return settings(**{key: value for key, value in given.items() if value is not None})
