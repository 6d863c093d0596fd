"""Workload of a run, wherever it runs: data, model, recipe. Building it finds out its faults."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from edge_agent.config import EdgeConfig
from edge_agent.data import Batch, BatchLoader, Collate, EvaluationLoader, evaluation_batches, first_batch
from edge_agent.data.named import check_alike, load_dataset
from edge_agent.data.order import load_order
from edge_agent.data.skipping import Skipping
from edge_agent.data.transform import BatchTransform
from edge_agent.deployment_config import DeploymentConfig
from edge_agent.experiment.first_weights import START_FROM, load_weights
from edge_agent.experiment.iterated import check_iterated
from edge_agent.experiment.judging import why_one_judge
from edge_agent.experiment.own_loss import check_own_loss
from edge_agent.experiment.privacy import labels_are_inputs
from edge_agent.experiment.side_effects import check_side_effects
from edge_agent.experiment.steady_samples import check_steady
from edge_agent.improvement_config import followed
from shared.config import Section
from shared.errors import ConfigError
from shared.execution.model_facts import facts_of
from shared.model.build import build_checked_chain
from shared.model.chain import Chain, with_measured
from shared.model.examples import length_of
from shared.model.features import FeatureSpecs, call_module, specs_of
from shared.model.inputs import Inputs, InputSpecs, with_length
from shared.model.snapshot import unchanged
from shared.model.spec import TensorSpec
from shared.registry.metrics import ACCURACY
from shared.training import block_state
from shared.training.losses import check_counted, check_label_count, check_labels, label_tensors, narrowed
from shared.training.optimizers import Grouping, check_optimizer, check_parameters
from shared.training.precision import check_weights, computing, with_types
from shared.training.recipe import Changes, Recipe
from shared.training.schedule import check_schedule


class Workload:
    """Raises ConfigError, DataError or ModelError for what cannot be trained."""

    def __init__(
        self, config: EdgeConfig, schedule_steps: int | None = None, weights_named_by: str = START_FROM
    ) -> None:
        """schedule_steps: the length of the training that the schedule was begun with; None for a new one.
        weights_named_by: the key or option that names the file of the first weights.
        """
        self.config = config
        data, training = config.data, config.training
        train = load_dataset(data.train.factory, data.train.kwargs)
        self.test = load_dataset(data.test.factory, data.test.kwargs) if data.test is not None else None
        check_alike(train, self.test)
        check_iterated(train, data, config.deployment)
        self.collate = None if data.collate is None else Collate(data.collate, data.longest)
        skipping = Skipping(training.seed, data.max_skipped) if data.on_error == "skip" else None
        transform = None if data.batch_transform is None else BatchTransform(data.batch_transform)
        read_first = partial(first_batch, train, data.batch_size, self.collate, skipping, transform)
        first = read_first()
        example = first.inputs if data.longest is None else with_length(first.inputs, data.longest)
        self.example = InputSpecs.of(example)
        if self.collate is not None:
            self.collate = self.collate.like(self.example)
        group, size = config.member, data.batch_size
        self.first_sample = 0 if group is None else group.rank * size
        """Sample of a group's batch with which a batch of this device begins."""
        self.loader = BatchLoader(
            train,
            size,
            training.seed,
            data.drop_last,
            data.workers,
            self.collate,
            first_sample=self.first_sample,
            group_batch=None if group is None or group.size is None or data.shard is None else group.size * size,
            skipping=skipping,
            transform=transform,
            order=load_order(data.sampler, data.sample_weights, data.batch_sampler, train, size, training.seed),
            steps_per_epoch=data.steps_per_epoch,
            resumes_by_state=first.resumes_by_state,
            pins=config.compute.device != "cpu" and torch.cuda.is_available(),
        )
        self.samples = self.loader.samples
        total_steps = training.epochs * self.loader.steps_per_epoch
        self.steps = _whole_updates(min(total_steps, training.max_steps or total_steps), training.accumulate_batches)
        self.leaves_out_late = False
        """True if the group of this device goes on without late members, so that none can end it."""
        check_label_count(training.loss, len(label_tensors(first.labels)))
        if config.deployment.recall:
            check_steady(train, self.collate, data.batch_size)
        try:
            self.recipe = Recipe(
                **_in_recipe(training),
                **_in_recipe(config.model),
                staleness_correction=config.staleness_correction,
                label_tensors=len(label_tensors(first.labels)),
                samples_ahead=data.ahead,
                recalled_samples=self.samples if config.deployment.recall else 0,
                recalled_label_bytes=_label_bytes(first) if config.deployment.recall else 0,
                changes=_changes(config.deployment, self.samples),
                steps_per_epoch=self.loader.steps_per_epoch,
                total_steps=schedule_steps or total_steps,
            )
        except ValidationError as cause:  # of keys that do not suit each other
            raise ConfigError(cause.errors()[0]["msg"].removeprefix("Value error, ")) from cause
        check_counted(self.recipe, None)
        check_schedule(self.recipe, None)
        check_optimizer(self.recipe.optimizer, None)
        firsts = {"data.train": first}
        if self.test is not None:
            firsts["data.test"] = next(evaluation_batches(self.test, data.batch_size, collate=self.collate))
        self.labels_that_are_inputs = [key for key, batch in firsts.items() if labels_are_inputs(batch)]
        """The keys of the data sets whose labels may go only where raw samples may."""
        self.first_labels = {key: batch.labels for key, batch in firsts.items()}
        """Labels of the first batch of each data set, by its key."""
        self.batch_size = first.samples
        """Samples of a whole batch: fewer than data.batch_size where the training set has fewer."""
        self.labels = self._labels_of(first)
        """Labels as they travel, for the first batch, or for the greatest length."""
        # A trainer takes no batch that is larger than the example.
        self.evaluation = (
            None if self.test is None else EvaluationLoader(self.test, self.batch_size, data.workers, self.collate)
        )
        self.chain = self._built(example)
        Grouping(training.optimizer).check(self.chain.module)
        check_parameters(training.optimizer, self.chain.module)
        check_weights(self.chain.module, self.recipe)
        self.first_weights = (
            None
            if training.start_from is None
            else load_weights(self.chain.module, training.start_from, weights_named_by)
        )
        """The first weights as a file gave them; None without one."""
        self.frozen_digests = [] if group is None else [block_state.frozen_digest(block) for block in self.chain.blocks]
        """Digests of the parameters that do not learn, by block, which all members of a group have alike."""
        # Crossings are judged with these samples and weights, too, not only with made-up ones as a trainer does it.
        with computing(self.recipe.base_precision):
            self.chain = with_measured(self.chain, first.inputs)
        self.chain = with_types(self.chain, self.recipe.other_precisions, first.inputs)
        self.facts = facts_of(self.chain, self.recipe, merged=group is not None)
        """Facts for every placement. Asked again during a forward over copied weights, the chain would tell of those."""
        for labels in specs_of(label_tensors(first.labels)):
            check_labels(training.loss, self.chain.features[0], self.chain.outputs_beside(labels), labels)
        check_own_loss(self.chain, self.recipe, first, partial(read_first, is_spread=True))
        if self.evaluation is not None:
            self._check_followed(firsts["data.test"])
        self.bound = check_side_effects(self.chain, self.recipe, first, stashes=config.deployment.backward == "stash")
        """Blocks that not every placement suits."""
        self.one_judge = why_one_judge(
            self.chain, self.recipe, firsts.get("data.test"), whole_loss=self.bound.whole_loss
        )
        """See `why_one_judge`."""

    def _check_followed(self, judged: Batch) -> None:
        """Refuse to follow an accuracy that evaluations do not find. judged: samples of theirs. Raises ConfigError."""
        (output, *others), (labels, *more) = self.chain.outputs, specs_of(label_tensors(judged.labels))
        has_classes = not others and not more and len(output.shape) == 2 and len(labels.shape) == 1
        if has_classes and not labels.differentiable:
            return
        for key, figure in followed(self.config).items():
            if figure.metric == ACCURACY:
                raise ConfigError(
                    f'{key}.metric is "{ACCURACY}", and the labels are no class for each sample; follow the loss'
                )

    def evaluates_at(self, step: int) -> bool:
        """Tell whether the model is evaluated at a boundary: it is the last one, or one of training.evaluate_every_*."""
        if self.evaluation is None:
            return False
        return step == self.steps or any(self.recipe.is_due(step, every) for every in self.evaluation_every)

    @property
    def evaluation_every(self) -> tuple[int, int]:
        """Steps from one evaluation to the next, by epochs and by steps; 0 where there is none before the end."""
        training = self.config.training
        if self.evaluation is None:
            return 0, 0
        return training.evaluate_every_epochs * self.loader.steps_per_epoch, training.evaluate_every_steps or 0

    @property
    def start_digest(self) -> str | None:
        """The digest of the file of first weights; None without one."""
        return None if self.first_weights is None else self.first_weights.digest

    def built_again(self) -> Chain:
        """A chain of its own of the same model, with the weights of the seed. Raises ModelError."""
        return replace(self._built(self.example.example()), readable=self.chain.readable, types=self.chain.types)

    def _built(self, example: Inputs) -> Chain:
        model = self.config.model
        with computing(self.recipe.base_precision):
            return build_checked_chain(
                model.factory,
                model.kwargs,
                self.config.training.seed,
                example,
                learning=self.recipe.learning,
                output=self.recipe.output,
                inputs_may_cross=bool(self.config.privacy.inputs_to),
                public_inputs=self.config.privacy.public_inputs,
                length_varies=self.config.data.longest is not None,
            )

    def _labels_of(self, first: Batch) -> FeatureSpecs:
        longest = self.config.data.longest
        length = None if longest is None else length_of(first.features)

        def at_longest(spec: TensorSpec) -> TensorSpec:
            if longest is None or spec.differentiable or spec.shape[1:2] != (length,):
                return spec
            return TensorSpec((spec.shape[0], longest, *spec.shape[2:]), spec.dtype)

        return tuple(at_longest(TensorSpec.of(narrowed(one))) for one in label_tensors(first.labels))

    def block_operations(self) -> list[float]:
        """Count the multiplications and additions of a forward of each block on a whole batch, as torch does: elementwise ones
        count nothing. The time of a block is roughly in proportion to them. Computes.
        """
        counted = []
        for block, inputs in zip(self.chain.blocks, self.chain.features, strict=False):
            device = next((parameter.device for parameter in block.module.parameters()), torch.device("cpu"))
            features = tuple(spec.example().to(device) for spec in inputs)
            counter = FlopCounterMode(display=False)
            with computing(self.recipe.base_precision), unchanged(block.module), torch.no_grad(), counter:
                call_module(block.module, features)
            counted.append(float(counter.get_total_flops()))
        return counted

    def close(self) -> None:
        """End the processes that read samples."""
        self.loader.close()
        if self.evaluation is not None:
            self.evaluation.close()


def _in_recipe(section: Section) -> dict[str, Any]:
    """Return the values of the keys of a section that the recipe has by the same names."""
    return {name: getattr(section, name) for name in type(section).model_fields if name in Recipe.model_fields}


def _label_bytes(first: Batch) -> int:
    """Count the bytes of the labels of a sample, as the loss takes them."""
    return sum(one.nbytes for one in label_tensors(first.labels)) // first.samples


def _changes(deployment: DeploymentConfig, samples: int) -> Changes | None:
    if deployment.changes is None:
        return None
    return Changes(samples=samples, codec=deployment.changes, above=deployment.changes_above)


def _whole_updates(steps: int, batches: int) -> int:
    """Return the steps of all whole updates. Raises ConfigError where there is none."""
    if steps < batches:
        raise ConfigError(
            f"training.accumulate_batches is {batches}, and the training has {steps} batches in all, too few for one update; "
            "make it smaller, or the training longer"
        )
    return steps // batches * batches
