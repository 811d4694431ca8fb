"""Rewards, tasks and environments in Python for Syncopate: what user code imports. The worker that runs it is
`syncopate-worker`."""
from .registry import Action, Environment, Reward, Tasks, Turn, environment, reward, tasks, verl_reward

__all__ = ["Action", "Environment", "Reward", "Tasks", "Turn", "environment", "reward", "tasks", "verl_reward"]
