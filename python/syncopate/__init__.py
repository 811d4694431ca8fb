"""Rewards and tasks in Python for Syncopate: what user code imports. The worker that runs it is `syncopate-worker`."""
from .registry import Reward, Tasks, reward, tasks, verl_reward

__all__ = ["Reward", "Tasks", "reward", "tasks", "verl_reward"]
