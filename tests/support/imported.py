"""Modules that most tests import, in seconds: a process that has imported this, and has opened no connection, is forked for
each suite of tests, and for agents and trainers."""
# ruff: noqa: F401

import gc

import hypothesis
import torch
import torch._dynamo  # what an optimizer imports when it is first made

import cloud_trainer.main
import cloud_trainer.server
import edge_agent.commands.run_service
import edge_agent.commands.terminal
import edge_agent.data
import edge_agent.main
import edge_agent.run
import edge_agent.training.results_folders
import shared.commands.process_log

torch.set_num_threads(
    1
)  # two suites at once on as many cores: threads that share an operation would wait for each other
gc.freeze()  # what modules consist of lives as long as the process
