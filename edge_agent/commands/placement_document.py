"""Document that `edge-agent placement --json` prints."""

from typing import Any

from edge_agent.experiment.placement_report import PlacementReport
from shared.placement import document_of

SCHEMA = "isthmus.placement-report/v1"


def to_document(report: PlacementReport) -> dict[str, Any]:
    """The report as JSON; its placement can be read again as a file (schema isthmus.placement/v1)."""
    return {
        "schema": SCHEMA,
        "placement": document_of(report.placement),
        "blocks": list(report.block_names),
        "crossings": [
            {
                "from": one.crossing.sender,
                "to": one.crossing.receiver,
                "cargo": str(one.crossing.cargo),
                "block": one.crossing.index,
                "samples": [one.crossing.rows.begin, one.crossing.rows.end],
                "codec": one.codec,
                "bytes": one.bytes,
            }
            for one in report.transfers
        ],
        "memory": [
            {
                "worker": one.worker,
                "weights": one.weights,
                "gradients": one.gradients,
                "optimizer": one.optimizer,
                "activations": one.activations,
                "waiting": one.waiting,
                "total": one.total,
            }
            for one in report.memory
        ],
        "sees": [
            {
                "worker": one.worker,
                "inputs": one.inputs,
                "labels": one.labels,
                "gradients_tell": list(one.gradients_tell),
                "outputs": one.outputs,
                "features": list(one.features),
                "weights": list(one.weights),
            }
            for one in report.visibility
        ],
    }
