"""Types of the tensors that cross between workers, where each worker may compute in a precision of its own."""

from dataclasses import replace

from shared.model.chain import Chain
from shared.model.features import FeatureSpecs
from shared.model.spec import TensorSpec
from shared.placement import Placement
from shared.training.recipe import Recipe


class CrossingTypes:
    """The kinds of tensors that cross under one placement.

    A tensor has the type that it has where all workers compute in the precision of its maker, and its error gradient the same.
    So neither depends on what others have made before.
    """

    def __init__(self, chain: Chain, recipe: Recipe, placement: Placement) -> None:
        self._chain = chain
        self._recipe = recipe
        self._placement = placement
        self._known: dict[int, FeatureSpecs] = {}

    def specs(self, feature: int) -> FeatureSpecs:
        """Return the kinds of the tensors of a feature, slot by slot, for a whole batch."""
        if not self._chain.types:
            return self._chain.features[feature]
        if feature not in self._known:
            self._known[feature] = tuple(
                self._spec(feature, slot, spec) for slot, spec in enumerate(self._chain.features[feature])
            )
        return self._known[feature]

    def _spec(self, feature: int, slot: int, spec: TensorSpec) -> TensorSpec:
        made = self._chain.value(feature, slot).feature
        if not made:
            return spec
        maker = self._placement.holders(made - 1)[0].worker
        types = self._chain.types.get(self._recipe.precision_of(maker))
        return spec if types is None else replace(spec, dtype=types[feature][slot])
