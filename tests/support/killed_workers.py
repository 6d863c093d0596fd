"""Programs of ours that are killed and started again, and their logs, which can be waited on."""

import signal
import subprocess

from tests.support.forked import Forked, program
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.running import ALLOWED, StandardError


class Logged:
    """A process of ours whose log, one JSON object a line, can be waited on."""

    def __init__(self, module, *arguments, target=program):
        """target: calls the program."""
        self.process = Forked(target, module, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._said = StandardError(self.process)

    def until(self, event, at_least=0):
        """Read the log to the next such event, of this step or a later one."""
        return self._said.first_event(event, least_step=at_least)

    @property
    def heard(self):
        """The log entries up to the last that was waited for."""
        return self._said.heard

    def end(self, number=signal.SIGKILL):
        """Send a signal; returns what was said last, when it has ended."""
        self.process.send_signal(number)
        return self.ended(60)[1]

    def ended(self, seconds):
        """Wait for its end: all of its standard output, and the last lines of its log."""
        self.process.wait(seconds)
        self._said.join()
        return self.process.stdout.read(), str(self._said)

    def close(self):
        self.process.kill()
        self.process.wait()
        self._said.join()
        self.process.stdout.close()


class Workers:
    """An agent and its trainers in a folder of their own, to be killed and started again."""

    def __init__(self, folder, addresses, placed, trained):
        """addresses: of the trainers, by name. placed: what the agent is told of them. trained: flags of what is trained."""
        self.folder = folder
        self.output = folder / "output"
        self.addresses, self.placed, self.trained = addresses, placed, trained
        self.running = []

    def trainer(self, name="trainer"):
        chosen = [f"server.listen={self.addresses[name]}", f"models.allowed={ALLOWED}", PEERS_ALLOWED]
        chosen += ["compute.threads=1", "log.format=json", f"checkpoints.location={self.folder / name}"]
        trainer = self._start("cloud_trainer.main", "serve", *(f"--set={flag}" for flag in chosen))
        trainer.until("listening")
        return trainer

    def agent_arguments(self, *more):
        chosen = [*self.trained, *self.placed, "compute.threads=1", "log.format=json", "checkpoints.every_steps=10"]
        chosen += [f"checkpoints.location={self.folder / 'edge'}", f"output.directory={self.output}", *more]
        return ["run", "--resume", *(f"--set={flag}" for flag in chosen)]

    def agent(self, *more, target=program):
        return self._start("edge_agent.main", *self.agent_arguments(*more), target=target)

    def _start(self, module, *arguments, target=program):
        self.running.append(Logged(module, *arguments, target=target))
        return self.running[-1]

    def close(self):
        for logged in self.running:
            logged.close()
