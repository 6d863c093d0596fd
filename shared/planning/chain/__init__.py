"""A model on a chain of workers (paper 001): its engine, its tasks, and runs over traces."""

from shared.planning.chain.chain_tasks import chain_tasks
from shared.planning.chain.comparison import CHAIN_CONTESTANTS, ChainSetting, compare_chain
from shared.planning.chain.device_factors import DeviceFactors
from shared.planning.chain.engine import ChainEngine

__all__ = ["CHAIN_CONTESTANTS", "ChainEngine", "ChainSetting", "DeviceFactors", "chain_tasks", "compare_chain"]
