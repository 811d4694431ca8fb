"""Rewards, tasks and environments in Python for Syncopate: what user code imports. The worker that runs it is
`syncopate-worker`."""
from .registry import (Action, Answer, Environment, Reward, Tasks, ToolCall, Turn, environment, group_reward, reward, tasks,
                       verl_reward)

__all__ = ["Action", "Answer", "Environment", "Reward", "Tasks", "ToolCall", "Turn", "environment", "group_reward", "reward",
           "tasks", "verl_reward"]
