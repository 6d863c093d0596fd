"""A server or a member of Flower, in a process of its own: federated averaging with one local step, whose computing sleeps.

`PYTHON flower_worker.py server|member HUB:PORT OWN_ADDRESS`, where PYTHON has `flwr`; it needs nothing of this project. It
reads JSON from standard input: "elements" of each tensor, "forward_seconds" and "backward_seconds" of each layer, "members",
"steps". The server prints the moments at which its rounds ended as a JSON array.
"""

import json
import sys
import time
from typing import Any

import flwr as fl
import numpy as np
from flwr.server.strategy import FedAvg

MOST_MESSAGE_BYTES = 1 << 30


class Timed(FedAvg):  # type: ignore[misc]
    """The average of all clients, which notes when each round ended."""

    def __init__(self, clients: int, elements: list[int]) -> None:
        """elements: of each tensor."""
        super().__init__(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=fl.common.ndarrays_to_parameters([np.zeros(count, np.float32) for count in elements]),
        )
        self.ends: list[float] = []

    def aggregate_fit(self, *results: Any) -> Any:
        """Average, and note the moment."""
        averaged = super().aggregate_fit(*results)
        self.ends.append(time.monotonic())
        return averaged


class Sleeper(fl.client.NumPyClient):  # type: ignore[misc]
    """One local step a round, on samples of its own."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:  # noqa: ARG002
        """Sleep for the computing of a step, and send new weights."""
        time.sleep(self._seconds)
        return [weights - np.float32(0.01) for weights in parameters], 1, {}


def main() -> None:
    """Serve, or take part, to the last round."""
    role, address, _ = sys.argv[1:]
    told = json.load(sys.stdin)
    if role == "member":
        sleeper = Sleeper(sum(told["forward_seconds"]) + sum(told["backward_seconds"])).to_client()
        fl.client.start_client(server_address=address, client=sleeper, grpc_max_message_length=MOST_MESSAGE_BYTES)
        return
    strategy = Timed(told["members"], told["elements"])
    fl.server.start_server(
        server_address=address,
        config=fl.server.ServerConfig(num_rounds=told["steps"]),
        strategy=strategy,
        grpc_max_message_length=MOST_MESSAGE_BYTES,
    )
    print(json.dumps(strategy.ends))


if __name__ == "__main__":
    main()
