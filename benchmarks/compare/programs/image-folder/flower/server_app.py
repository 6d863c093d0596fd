"""The trainer's half in Flower: it has the loss, and asks the device for the features of one batch after the other."""

import time

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from halves import back_half, front_half, recipe
from torch.nn.functional import cross_entropy

app = ServerApp()


def ask(grid, node, kind, told, gradient=None):
    content = RecordDict({"told": ConfigRecord(told)})
    if gradient is not None:
        content["down"] = ArrayRecord([gradient.numpy()])
    message = Message(content, dst_node_id=node, message_type=kind)
    ids = list(grid.push_messages([message]))
    while not (replies := list(grid.pull_messages(ids))):  # send_and_receive would look every 3 s
        time.sleep(0.01)
    return [torch.from_numpy(array.copy()) for array in replies[0].content["up"].to_numpy_ndarrays()]


@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.1)
    config = context.run_config
    back, steps, gradient = back_half(), config["steps"], None
    optimizer, schedule = recipe(back, steps)
    for step in range(steps):
        features, labels = ask(grid, nodes[0], "train", {"step": step, "steps": steps}, gradient)
        features.requires_grad_()
        optimizer.zero_grad()
        cross_entropy(back(features), labels).backward()
        optimizer.step()
        schedule.step()
        gradient = features.grad
        print(f"step {step + 1} at {time.time():.3f}", flush=True)
    weights = ask(grid, nodes[0], "train", {"step": steps, "steps": steps}, gradient)
    features, labels = ask(grid, nodes[0], "evaluate", {"steps": steps})
    with torch.no_grad():
        right = (back.eval()(features).argmax(1) == labels).float().mean()
    print(f"accuracy {float(right):.4f}", flush=True)
    front = dict(zip(front_half().state_dict(), weights, strict=True))
    torch.save({"front": front, "back": back.state_dict()}, config["saved"])
