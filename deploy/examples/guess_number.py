"""An environment in Python: a number from 1 to 99 is to be found by higher and lower.

    pip install ./python
    syncopate run deploy/examples/guess_number.yaml model.path=... data.files=...

docs/environments.md says the rest.
"""
import re

from syncopate import Turn, environment


@environment("guess_number", budget=10.0)
class GuessNumber:
    """Each episode has an object of its own. `step` may await whatever it likes; it must not block."""

    async def reset(self, task, seed):
        """`task` is the row of the data file. What is returned here would be read before the first turn."""
        self.number = int(task["ground_truth"])

    async def step(self, action):
        numbers = re.findall(r"\d+", action.text)
        guess = int(numbers[-1]) if numbers else None
        if guess == self.number:
            return Turn(reward=1.0, done=True)
        if guess is None:
            return Turn("Write a number.", reward=-0.2)
        return Turn("higher" if guess < self.number else "lower", reward=-0.1)
