"""What most tests import, in seconds. A process that has imported this, and has talked to nobody, is forked for each suite of
tests, and for each agent and trainer of the chaos tests."""
# ruff: noqa: F401

import torch
import torch._dynamo  # what an optimizer imports when it is first made

import cloud_trainer.server
import edge_agent.data
import edge_agent.run
