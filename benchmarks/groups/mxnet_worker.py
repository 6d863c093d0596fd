"""A process of MXNet's parameter server: a scheduler, a server, or a member whose computing sleeps.

`PYTHON mxnet_worker.py scheduler|server|member HUB:PORT OWN_ADDRESS`, where PYTHON has `mxnet` 1.9.1 and a NumPy before 1.24;
it needs nothing of this project. It reads JSON from standard input: "elements" of each tensor, "forward_seconds" and
"backward_seconds" of each layer, "members", "steps", and "store", a kind of MXNet's KVStore. As in its trainers, a layer's
gradient is pushed and its weights are asked for once its backward is done, the first layers with the highest priority, and a
layer's forward waits for its weights alone. The first member prints the moments at which its steps ended as a JSON array.
"""

import json
import os
import sys
import time
from typing import Any


def train(mx: Any, told: dict[str, Any]) -> None:
    """Train as one member. mx: the library."""
    store = mx.kv.create(told["store"])
    layers = range(len(told["elements"]))
    weights = [mx.nd.zeros((count,)) for count in told["elements"]]
    gradients = [mx.nd.zeros((count,)) for count in told["elements"]]
    for layer in layers:
        store.init(layer, weights[layer])
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.01))
    ends = []
    for _ in range(told["steps"]):
        for layer in layers:
            weights[layer].wait_to_read()
            time.sleep(told["forward_seconds"][layer])
        for layer in reversed(layers):
            time.sleep(told["backward_seconds"][layer])
            store.push(layer, gradients[layer], priority=-layer)
            store.pull(layer, out=weights[layer], priority=-layer)
        ends.append(time.monotonic())
    mx.nd.waitall()
    if store.rank == 0:
        print(json.dumps(ends))


def main() -> None:
    """Serve, or take part, to the last step."""
    role, hub, own_address = sys.argv[1:]
    told = json.load(sys.stdin)
    host, _, port = hub.rpartition(":")
    os.environ.update(
        DMLC_ROLE="worker" if role == "member" else role,
        DMLC_PS_ROOT_URI=host,
        DMLC_PS_ROOT_PORT=port,
        DMLC_NODE_HOST=own_address,
        DMLC_NUM_WORKER=str(told["members"]),
        DMLC_NUM_SERVER="1",
        OMP_NUM_THREADS="1",
    )
    import mxnet as mx  # it serves while it is imported, where the role says so

    if role == "member":
        train(mx, told)


if __name__ == "__main__":
    main()
