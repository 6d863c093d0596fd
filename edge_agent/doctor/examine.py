"""All checks in their order; one that rests on another that has failed is skipped, and says on which."""

import asyncio
import datetime
from dataclasses import replace
from functools import partial

from cryptography import x509

from edge_agent.config import EdgeConfig
from edge_agent.doctor.device import examine_device
from edge_agent.doctor.finding import Finding, Status, advise, fine, fix, skipped
from edge_agent.doctor.link import check_downlink, check_links, check_round_trip, check_uplink
from edge_agent.doctor.reach import SOON, check_connection, check_encryption, check_name
from edge_agent.doctor.trainer import check_access, check_service
from shared.client.config import ClientTlsConfig, TrainerAddressConfig
from shared.client.credentials import TrainerAccess, trainer_access
from shared.client.probing import ProbeCalls
from shared.errors import ConfigError
from shared.placement import load_placement

WAY_TO_THE_TRAINER = (
    "credentials",
    "name",
    "connection",
    "encryption",
    "service",
    "token",
    "protocol",
    "round trip",
    "uplink",
    "downlink",
)
"""The checks of `examine_way`."""


async def examine(config: EdgeConfig) -> list[Finding]:
    """Look at this device and at the way to each of its trainers."""
    device = await asyncio.to_thread(examine_device, config)
    return [*device, *await examine_trainers(config)]


async def examine_trainers(config: EdgeConfig) -> list[Finding]:
    """Look at the way to each trainer that a run asks. Of several, each finding begins with the trainer's name."""
    trainers = config.all_trainers
    if not trainers:
        return [skipped("trainer", "none is configured: this device trains alone, asks nobody and sends nothing")]
    findings, asked = check_placement(config)
    for trainer in trainers:  # one after the other, because they may share a link that is measured
        if trainer in asked:
            behind = asked[asked.index(trainer) + 1 :]
            found = await examine_way(config, trainer, behind)
        else:
            found = [skipped("trainer", "the placement does not name it, so a run does not ask it")]
        several = len(trainers) > 1
        findings += [replace(one, check=f"{trainer.name}: {one.check}") for one in found] if several else found
    return findings


async def examine_way(
    config: EdgeConfig, trainer: TrainerAddressConfig, behind: tuple[TrainerAddressConfig, ...] = ()
) -> list[Finding]:
    """Look at the way to a trainer, as far as it goes. behind: those that it may have to dial."""
    findings = await _as_far_as_it_goes(config, trainer, behind)
    failed = findings[-1].check
    return [*findings, *(skipped(check, f"needs {failed}") for check in WAY_TO_THE_TRAINER[len(findings) :])]


async def _as_far_as_it_goes(
    config: EdgeConfig, trainer: TrainerAddressConfig, behind: tuple[TrainerAddressConfig, ...]
) -> list[Finding]:
    credentials, access = check_credentials(trainer, config.tls, datetime.datetime.now(datetime.UTC))
    findings = [credentials]
    if access is None:
        return findings
    host, _, port_text = trainer.address.rpartition(":")
    host, port = host.strip("[]"), int(port_text)
    way = [
        partial(check_name, trainer, host, port),
        partial(check_connection, trainer, host, port),
        partial(check_encryption, trainer, config.tls, host, port),
    ]
    for check in way:
        findings.append(await check())
        if findings[-1].status is Status.FIX:
            return findings
    async with ProbeCalls(trainer.address, access, config.link) as calls:
        findings.append(await check_service(calls))
        if findings[-1].status is Status.FIX:
            return findings
        findings += await check_access(calls)
        round_trip, seconds = await check_round_trip(calls)
        findings += [round_trip, await check_uplink(calls, seconds), await check_downlink(calls, seconds)]
        if behind:
            findings += await check_links(calls, behind, next_down_the_chain(config, trainer, behind))
    return findings


def check_credentials(
    trainer: TrainerAddressConfig, tls: ClientTlsConfig, now: datetime.datetime
) -> tuple[Finding, TrainerAccess | None]:
    """Check that this agent's own files can be used, and for how long. Return also the access that they make."""
    try:
        access = trainer_access(trainer, tls)
    except ConfigError as error:
        return fix("credentials", str(error), "see docs/security.md, five minutes to a closed port"), None
    parts = ["a token"] if access.token is not None else []
    if tls.certificate is not None:
        ends = _end_of(tls.certificate.read_bytes())
        parts.append(f"a certificate that is good until {ends:%Y-%m-%d}")
        if ends - now < SOON:
            return advise("credentials", " and ".join(parts), "renew it (cloud-trainer certs, run again)"), access
    return fine("credentials", " and ".join(parts) or "none are set"), access


def _end_of(pem: bytes) -> datetime.datetime:
    return x509.load_pem_x509_certificates(pem)[0].not_valid_after_utc


def check_placement(config: EdgeConfig) -> tuple[list[Finding], tuple[TrainerAddressConfig, ...]]:
    """Return advice on the placement, if there is any, and the trainers that are to be examined: those that a run asks.

    No model is loaded, so whether the blocks fit stays open.
    """
    try:
        asked = _trainers_of_a_run(config)
    except ConfigError as error:
        return [fix("placement", str(error), "correct this file, or leave placement.file out")], config.all_trainers
    if len(asked) > 1 and not config.placement.given:
        remedy = "one of them runs the blocks behind the cut; say in [placement] where several are to"
        return [advise("placement", f"none, for {len(asked)} trainers", remedy)], asked
    return [], asked


def _trainers_of_a_run(config: EdgeConfig) -> tuple[TrainerAddressConfig, ...]:
    """The trainers that the placement names, or all where there is none. Raises ConfigError for a file that is none."""
    section = config.placement
    if section.file is not None:
        workers = load_placement(section.file, blocks=0, batch_size=config.data.batch_size).workers
    elif section.given:
        workers = tuple(section.blocks)
    else:
        return config.all_trainers
    return tuple(trainer for trainer in config.all_trainers if trainer.name in workers)


def next_down_the_chain(
    config: EdgeConfig, trainer: TrainerAddressConfig, behind: tuple[TrainerAddressConfig, ...]
) -> TrainerAddressConfig | None:
    """The trainer whose blocks follow those of this one; None where [placement] does not say so by ranges."""
    blocks = config.placement.blocks
    ends = {text.rpartition(":")[2] for text in blocks.get(trainer.name, ())}
    follows = [
        other for other in behind if ends & {text.partition(":")[0] for text in blocks.get(other.name, ())} - {""}
    ]
    return follows[0] if follows else None
