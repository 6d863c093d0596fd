"""The device's half in Flower: a message finds the state of the last one in the context, since none finds its process."""

import io

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from halves import BATCH, front_half, recipe
from net import pictures
from order import Order
from torch.utils.data import default_collate

app = ClientApp()


def batch_of(samples, step):
    steps_per_epoch = len(samples) // BATCH
    order = list(Order(len(samples), step // steps_per_epoch))
    first = step % steps_per_epoch * BATCH
    return default_collate([samples[index] for index in order[first : first + BATCH]])


def answer(message, *tensors):
    return Message(RecordDict({"up": ArrayRecord([tensor.numpy() for tensor in tensors])}), reply_to=message)


def restored(context, steps):
    front = front_half()
    optimizer, schedule = recipe(front, steps)
    parts = (front, optimizer, schedule)
    if "kept" in context.state:
        kept = torch.load(io.BytesIO(context.state["kept"]["state"]), weights_only=True)
        for part, state in zip(parts, kept, strict=True):
            part.load_state_dict(state)
    return parts


@app.train()
def train(message, context):
    told = message.content["told"]
    samples = pictures("digits/train")
    front, optimizer, schedule = parts = restored(context, told["steps"])
    if "down" in message.content:
        (gradient,) = message.content["down"].to_numpy_ndarrays()
        values, _ = batch_of(samples, told["step"] - 1)
        front(values).backward(torch.from_numpy(gradient))
        optimizer.step()
        schedule.step()
        kept = io.BytesIO()
        torch.save([part.state_dict() for part in parts], kept)
        context.state["kept"] = ConfigRecord({"state": kept.getvalue()})
    if told["step"] == told["steps"]:
        return answer(message, *front.state_dict().values())
    values, labels = batch_of(samples, told["step"])
    with torch.no_grad():
        return answer(message, front(values), labels)


@app.evaluate()
def evaluate(message, context):
    front, _, _ = restored(context, message.content["told"]["steps"])
    samples = pictures("digits/test")
    values, labels = default_collate([samples[index] for index in range(len(samples))])
    with torch.no_grad():
        return answer(message, front.eval()(values), labels)
