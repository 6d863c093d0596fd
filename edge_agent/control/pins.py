"""The parts of the deployment that an operator has pinned, with a decision engine and without one."""

from dataclasses import dataclass, replace

import grpc

from edge_agent.adaptation.chain_decisions import ChainDecisions
from edge_agent.adaptation.chooser import Decisions
from edge_agent.deployment_config import DeploymentConfig
from edge_agent.training.open_run import Deploys
from shared.errors import ConfigError, IsthmusError
from shared.model.build import check_cut
from shared.model.chain import Chain
from shared.placement import at_cuts, cuts_of
from shared.registry import bit_widths, codec_bits, codec_of_bits
from shared.transport.rpc.status import StatusError


@dataclass(frozen=True, slots=True)
class Pins:
    """None is not pinned."""

    cut: int | None = None
    bits: int | None = None
    staleness: int | None = None
    cuts: tuple[int, ...] | None = None
    """Cuts of a chain: the blocks before each worker but the first."""


class Pinning:
    """Tells the engine what it may not choose, and the deployer what is to hold."""

    def __init__(self, configured: DeploymentConfig) -> None:
        self._configured = configured
        self.now = Pins()
        self._deployer: Deploys | None = None
        self._decisions: Decisions | None = None
        self._chain: Chain | None = None

    def begin(self, chain: Chain, deployer: Deploys, decisions: Decisions | None) -> None:
        """Pin in this run from now on."""
        self._chain, self._deployer, self._decisions = chain, deployer, decisions
        if self.now != Pins():
            self._set(self.now)

    def check(self, wanted: Pins) -> None:
        """Refuse what cannot be pinned, whatever the trainer says. Raises StatusError, ModelError for a cut out of range."""
        if wanted == Pins():
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, "nothing to pin; give cut, bits or staleness")
        if wanted.cut is not None and self._chain is not None:
            check_cut(wanted.cut, self._chain)
        if wanted.cut is not None and self._deployer is not None and not self._deployer.has_cut:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "the placement is not of two workers on one cut, so there is no cut to pin",
            )
        if wanted.cuts is not None and self._deployer is not None:
            self._check_cuts(wanted.cuts, self._deployer)
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

    def pin(self, wanted: Pins) -> None:
        """Hold this too, from now on.

        Raises PlanError for what the engine's profile has not measured, DataError for a cut at which labels may not leave;
        nothing changes then.
        """
        given = {
            name: value for name in ("cut", "bits", "staleness", "cuts") if (value := getattr(wanted, name)) is not None
        }
        self._set(replace(self.now, **given))

    def release(self, names: list[str]) -> None:
        """Hold these no longer."""
        self._set(replace(self.now, **dict.fromkeys(names)))

    def enforce(self) -> None:
        """Ask for what is pinned and not so."""
        if (deployer := self._deployer) is None:
            return
        today, pins = deployer.deployment, self.now
        codec = today.codec
        if pins.bits is not None and pins.bits != codec_bits(codec):
            codec = codec_of_bits(pins.bits, self._configured.first_codec)
        staleness = today.staleness if pins.staleness is None else pins.staleness
        if (codec, staleness) != (today.codec, today.staleness):
            deployer.change(staleness=staleness, codec=codec)
        if pins.cuts is not None and _are_others(cuts_of(deployer.placement), pins.cuts):
            deployer.move_cuts(pins.cuts)
        if pins.cut is not None and deployer.has_cut and (deployer.moving or pins.cut != today.edge_blocks):
            deployer.move(pins.cut)

    def _set(self, pins: Pins) -> None:
        before = self.now
        self._tell_engine(pins)
        self.now = pins
        try:
            self.enforce()
        except IsthmusError:
            self.now = before
            self._tell_engine(before)
            raise

    def _tell_engine(self, pins: Pins) -> None:
        if isinstance(self._decisions, ChainDecisions):
            self._decisions.pin(cuts=pins.cuts, bits=pins.bits)
        elif self._decisions is not None:
            self._decisions.pin(cut=pins.cut, bits=pins.bits, staleness=pins.staleness)

    def _check_cuts(self, cuts: tuple[int, ...], deployer: Deploys) -> None:
        """Raises StatusError for cuts that the chain cannot have, ModelError for one where the model cannot be cut."""
        try:
            at_cuts(deployer.placement, cuts)
        except ConfigError as cause:
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, str(cause)) from cause
        for cut in cuts:
            if self._chain is not None:
                check_cut(cut, self._chain)


def _are_others(cuts: tuple[int, ...] | None, wanted: tuple[int, ...]) -> bool:
    """Tell whether a chain has other cuts than are wanted. With a trainer left out it has fewer, and waits until it is
    back."""
    return cuts is not None and len(cuts) == len(wanted) and cuts != wanted
