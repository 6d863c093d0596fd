"""Profiles from files and to files."""

import json
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from edge_agent.planning.complaint import complaint, shown
from edge_agent.planning.measurements import Floats, Linear
from edge_agent.planning.operation_costs import BlockCosts, BlockSeconds, CodecCosts
from edge_agent.planning.profile.document import (
    SCHEMA,
    CodecTimes,
    ProfiledLink,
    ProfileDocument,
    ProfiledWorker,
    Runs,
    SampleSeconds,
)
from edge_agent.planning.profile.profile import MeasuredLink, Profile, WorkerProfile, no_times, with_batch_size
from shared.errors import PlanError
from shared.files.json_file import read_json

MOST_FILE_BYTES = 16 * 2**20
"""More is refused before it is read."""


def load_profile(path: Path) -> Profile:
    """Read the profile in a file. PlanError when it cannot be read or has an error."""
    return _profile(load_document(path), str(path))


def parse_profile(decoded: object, where: str) -> Profile:
    """Read the profile in a decoded JSON object. `where` begins every error."""
    return _profile(parse_document(decoded, where), where)


def load_document(path: Path) -> ProfileDocument:
    """Read what is in a file. PlanError when it cannot be read or has an error."""
    if path.is_file() and path.stat().st_size > MOST_FILE_BYTES:
        raise PlanError(f"{path}: the profile has {path.stat().st_size} bytes; {MOST_FILE_BYTES} is the most")
    return parse_document(read_json(path, "profile", PlanError), str(path))


def parse_document(decoded: object, where: str) -> ProfileDocument:
    """Read what is in a decoded JSON object. `where` begins every error."""
    if not isinstance(decoded, dict):
        raise PlanError(f"{where}: a profile is a JSON object, not {shown(decoded)}")
    if decoded.get("schema") != SCHEMA:
        raise PlanError(
            f'{where}: schema is {shown(decoded.get("schema"))}; this version reads "{SCHEMA}", so profile again with '
            "`edge-agent profile`"
        )
    try:
        # As JSON, because there a list may be a tuple although the types are strict.
        return ProfileDocument.model_validate_json(json.dumps(decoded))
    except ValidationError as wrong:
        raise PlanError(f"{where}: {complaint(wrong)}") from None
    except RecursionError:
        raise PlanError(f"{where}: it is nested too deep") from None


def profile_to_json(profile: Profile) -> str:
    """Write the file's text for a profile, a key a line. `parse_profile` of it gives the same profile."""
    document = _document(profile).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    pairs = {"schema": SCHEMA, **document}.items()
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in pairs)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _profile(document: ProfileDocument, where: str) -> Profile:
    if document.batch_size is None or not document.workers:
        raise PlanError(
            f"{where}: no times of workers are in it, so there is nothing to choose from; measure them with "
            "`edge-agent profile`"
        )
    hops = [link.between for link in document.links]
    profile = Profile(
        model=document.model,
        batch_size=document.batch_size,
        blocks=document.blocks,
        feature_bytes=document.feature_bytes,
        gradient_bytes=document.gradient_bytes,
        workers=tuple(_worker(worker, len(document.blocks)) for worker in document.workers),
        links={
            link.between: MeasuredLink(link.uplink, link.downlink, link.round_trip_seconds) for link in document.links
        },
        encode=document.encode and Linear(document.encode[0], document.encode[1]),
        codec_family=document.codec_family,
        min_bits=document.min_bits,
        max_staleness=document.max_staleness,
        links_stay=document.links_stay,
        by_samples=_costs(document) if document.is_by_samples else None,
        shared_segments=tuple(tuple(hops[number] for number in numbers) for numbers in document.shared_segments),
        remarks=document.remarks,
    )
    return profile if profile.by_samples is None else with_batch_size(profile, profile.batch_size)


def _worker(worker: ProfiledWorker, blocks: int) -> WorkerProfile:
    return WorkerProfile(worker.name, _table(worker.replayed, blocks), _table(worker.serial, blocks), worker.message)


def _table(runs: Runs, blocks: int) -> Floats:
    table = no_times(blocks)
    for first, stop, seconds in runs:
        table[first, stop] = seconds
    return table


def _costs(document: ProfileDocument) -> BlockCosts:
    of_workers = {worker.name: worker.by_samples for worker in document.workers if worker.by_samples is not None}
    return BlockCosts(
        blocks={name: _block_seconds(each) for name, each in of_workers.items()},
        feature_bytes=tuple(size for size in document.sample_bytes if size is not None),
        weight_bytes=tuple(block.parameter_bytes or 0.0 for block in document.blocks),
        label_bytes=document.label_bytes or 0.0,
        codecs={
            name: CodecCosts(codec.bits, Linear(*codec.encode), Linear(*codec.decode))
            for name, codec in document.codecs.items()
        },
        messages={name: Linear(*each.message) for name, each in of_workers.items()},
    )


def _block_seconds(times: SampleSeconds) -> tuple[BlockSeconds, ...]:
    return tuple(
        BlockSeconds(Linear(*forward), Linear(*backward), update)
        for forward, backward, update in zip(times.forward, times.backward, times.update, strict=True)
    )


def _document(profile: Profile) -> ProfileDocument:
    costs, hops = profile.by_samples, list(profile.links)
    return ProfileDocument(
        model=profile.model,
        batch_size=profile.batch_size,
        blocks=profile.blocks,
        feature_bytes=profile.feature_bytes if costs is None else (),
        gradient_bytes=profile.gradient_bytes if costs is None else (),
        sample_bytes=() if costs is None else costs.feature_bytes,
        label_bytes=None if costs is None else costs.label_bytes,
        workers=tuple(
            ProfiledWorker(
                name=worker.name,
                replayed=_runs(worker.replayed),
                serial=_runs(worker.serial),
                message=worker.message,
            )
            if costs is None
            else ProfiledWorker(name=worker.name, by_samples=_sample_seconds(costs, worker.name))
            for worker in profile.workers
        ),
        links=tuple(
            ProfiledLink(
                between=hop,
                uplink=link.uplink,
                downlink=link.downlink,
                round_trip_seconds=link.round_trip_seconds,
            )
            for hop, link in profile.links.items()
        ),
        shared_segments=tuple(tuple(hops.index(hop) for hop in segment) for segment in profile.shared_segments),
        links_stay=profile.links_stay,
        encode=None if profile.encode is None else (profile.encode.seconds, profile.encode.seconds_per_unit),
        codec_family=profile.codec_family,
        min_bits=profile.min_bits,
        max_staleness=profile.max_staleness,
        codecs={
            name: CodecTimes(bits=codec.bits, encode=codec.encode, decode=codec.decode)
            for name, codec in (costs.codecs if costs else {}).items()
        },
        remarks=dict(profile.remarks),
    )


def _runs(table: Floats) -> Runs:
    return tuple((first, stop, float(table[first, stop])) for first, stop in np.argwhere(~np.isnan(table)).tolist())


def _sample_seconds(costs: BlockCosts, worker: str) -> SampleSeconds:
    blocks = costs.blocks[worker]
    return SampleSeconds(
        forward=tuple(block.forward for block in blocks),
        backward=tuple(block.backward for block in blocks),
        update=tuple(block.update for block in blocks),
        message=costs.message_at(worker),
    )
