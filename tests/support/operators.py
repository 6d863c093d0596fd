"""An operator without our files: calls by reflection, and runs that are long enough to be steered."""

import json

from tests.support.commands import MLP
from tests.support.experiments import MODELS
from tests.support.peers.curl import curl, curl_stream

EDGE, TRAINER = "isthmus.v1.EdgeControlService", "isthmus.v1.TrainerControlService"
HEALTH = "grpc.health.v1.Health/Check"
STEPS = 300
SETTINGS = [*MLP, "model.kwargs={depth=4}", f"training.max_steps={STEPS}", "training.epochs=1000"]
ENDLESS = [*MODELS["cnn"], "training.max_steps=1000000", "training.epochs=100000", "training.evaluate_every_epochs=0"]
"""A network whose features are large enough to measure a link by."""
OFTEN = {"interval": "0.05s"}


class Operator:
    """Calls one service, and remembers what each call was answered."""

    def __init__(self, target, service):
        self.target, self.service = target, service
        self.answers = {}

    def __call__(self, name, data=None, *, remember=True):
        """The answer to a call that is not refused."""
        code, out, err = curl(self.target, method=f"{self.service}/{name}", data=data or {})
        assert code == 0, err
        answer = json.loads(out)
        if remember:
            self.answers[name] = answer
        return answer

    def refused(self, name, data=None):
        """Code and sentence of a call that is."""
        code, out, err = curl(self.target, method=f"{self.service}/{name}", data=data or {})
        assert (code != 0, out) == (True, ""), out
        refusal = json.loads(err)
        return refusal["code"], refusal["message"]

    def watch_until(self, reached):
        """The first status that is as it should be."""
        with curl_stream(self.target, f"{self.service}/Watch", OFTEN) as statuses:
            for answer in statuses:
                if reached(answer["status"]):
                    return answer["status"]
        raise AssertionError("the stream ended before that was so")

    def health(self, name):
        code, out, err = curl(self.target, method=HEALTH, data={"service": name})
        assert code == 0, err
        return json.loads(out)["status"]
