"""The parts of the placement that an operator has pinned, with a decision engine and without one."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import grpc

from edge_agent.adaptation.decisions import DecisionLoop
from edge_agent.deployment_config import DeploymentConfig
from edge_agent.experiment.experiment import trainers_with_blocks, with_settings
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from shared.errors import IsthmusError
from shared.placement import Cargo, chain_workers
from shared.registry import bit_widths, codec_bits, codec_of_bits
from shared.transport.rpc.status import StatusError


@dataclass(frozen=True, slots=True)
class Pins:
    """None is not pinned."""

    cuts: tuple[int, ...] | None = None
    """The blocks before each worker but the first."""
    bits: int | None = None
    staleness: int | None = None
    trainer: str | None = None
    """The only trainer that has blocks."""


def _given(pins: Pins) -> dict[str, Any]:
    return {name: value for name in Pins.__slots__ if (value := getattr(pins, name)) is not None}


def check_stands(is_requested: bool) -> None:
    """Refuse an operator's request where one of a higher chooser stands. Raises StatusError."""
    if not is_requested:
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "a trainer is about to stop, and its blocks go to another one first; try again once they have",
        )


class Pinning:
    """The pins, passed to the engine as limits and to the deployer as requests."""

    def __init__(self, configured: DeploymentConfig) -> None:
        self._configured = configured
        self.now = Pins()
        self._deployer: Deployer | None = None
        self._decisions: DecisionLoop | None = None
        self._alone = asyncio.Lock()
        """Held while pins change."""

    async def begin(self, deployer: Deployer, decisions: DecisionLoop | None) -> None:
        """Pin in this run from now on."""
        self._deployer, self._decisions = deployer, decisions
        deployer.pinned_trainer = self.now.trainer
        if self.now != Pins():
            await self._change()

    def check(self, wanted: Pins) -> None:
        """Refuse impossible pins, whatever the trainer permits.

        Raises StatusError, and ModelError, ConfigError or DataError for impossible or forbidden cuts.
        """
        if wanted == Pins():
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, "nothing to pin; give cut, bits, staleness or trainer")
        if wanted.cuts is not None and self._deployer is not None:
            before = self._deployer.placement
            if chain_workers(before) is None:
                raise StatusError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    "the placement is not of workers that each run the next blocks, so there is no cut to pin",
                )
            self._deployer.experiment.cut_at(wanted.cuts, before)
        if wanted.trainer is not None and self._deployer is not None:
            before = self._deployer.placement
            if trainers_with_blocks(before) != [wanted.trainer]:
                self._deployer.experiment.handed_over(before, wanted.trainer)
        if wanted.bits is not None and wanted.bits not in bit_widths():
            widths = ", ".join(map(str, bit_widths()))
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, f"bits is {wanted.bits}; it must be one of {widths}")
        if wanted.bits is not None and self._configured.follows_codecs:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "bits follow the schedule in deployment.codec and cannot be pinned; start the run with one codec there",
            )
        if wanted.staleness is not None and not isinstance(self._configured.staleness, int):
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "K follows the schedule in deployment.staleness and cannot be pinned; start the run with one value there",
            )

    async def pin(self, wanted: Pins) -> None:
        """Add these pins.

        Raises PlanError for values that the engine's profile has not measured, DataError for a cut at which labels may
        not leave; nothing changes then.
        """
        await self._change(**_given(wanted))

    async def release(self, names: list[str]) -> None:
        """Release these pins."""
        await self._change(**dict.fromkeys(names))

    def stand(self, wanted: Pins) -> bool:
        """Tell whether these pins stand, and no later ones have taken their places."""
        return all(getattr(self.now, name) == value for name, value in _given(wanted).items())

    async def put_back(self, before: Pins, refused: Pins) -> None:
        """Pin what was pinned before in place of what does not come into force, unless that was pinned otherwise since."""
        given = _given(refused).items()
        await self._change(**{name: getattr(before, name) for name, value in given if getattr(self.now, name) == value})

    def end(self) -> None:
        """Release all pins, for example when the operator places blocks."""
        self._set(Pins())

    def enforce(self) -> bool:
        """Request pinned values that are not in force. If a trainer is left out, a chain has fewer cuts, and they wait
        for its return.

        Returns False where a request of a higher chooser stands.
        """
        if (deployer := self._deployer) is None:
            return True
        before, pins = deployer.placement, self.now
        placement = before
        if pins.trainer is not None and len(having := trainers_with_blocks(before)) == 1 and having != [pins.trainer]:
            placement = deployer.experiment.handed_over(before, pins.trainer)
        workers = chain_workers(placement)
        if pins.cuts is not None and workers and len(pins.cuts) + 1 in (len(workers), len(before.workers)):
            placement = deployer.experiment.cut_at(pins.cuts, placement)
        placement = with_settings(placement, pins.staleness, {})
        if pins.bits is not None:
            wide = codec_of_bits(pins.bits, self._configured.first_codec)
            others = {route: name for route, name in placement.codecs.items() if route.cargo is Cargo.FEATURE}
            changed = {route: wide for route, name in others.items() if codec_bits(name) != pins.bits}
            placement = replace(placement, codecs={**placement.codecs, **changed})
        return placement == before or deployer.want(placement, Chooser.OPERATOR)

    async def _change(self, **values: Any) -> None:
        async with self._alone:
            before = self.now
            pins = replace(before, **values)
            await self._tell_engine(pins)
            self._set(pins)
            try:
                check_stands(self.enforce())
            except IsthmusError:
                self._set(before)
                await self._tell_engine(before)
                raise

    def _set(self, pins: Pins) -> None:
        self.now = pins
        if self._deployer is not None:
            self._deployer.pinned_trainer = pins.trainer

    async def _tell_engine(self, pins: Pins) -> None:
        if self._decisions is not None:
            await self._decisions.pin(pins.cuts, pins.bits, pins.staleness)
