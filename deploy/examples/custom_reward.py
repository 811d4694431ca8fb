"""Rewards in Python: a plain one, one that waits for a service, one of verl's signature.

    pip install ./python
    syncopate run MINE.yaml "reward.name=python:short + 0.1*python:polite" \
        "environment.command=syncopate-worker deploy/examples/custom_reward.py"

docs/rewards.md says the rest.
"""
import asyncio

from syncopate import reward, verl_reward


@reward("short")
def short(answer, row):
    """1 for the right answer in few words. A plain function: it may block, hang or crash, in a process of its own."""
    right = str(row["ground_truth"]) in answer
    return {"value": float(right and len(answer.split()) <= 50), "right": float(right), "words": len(answer.split())}


@reward("polite")
async def polite(answer, row):
    """A coroutine: many wait beside each other, for a service say. It must not block."""
    await asyncio.sleep(0)
    return 1.0 if "please" in answer.lower() else 0.0


@verl_reward("verl_exact")
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0 if solution_str.strip() == str(ground_truth).strip() else 0.0
