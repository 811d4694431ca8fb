"""The reward math_verify: whether the last boxed answer means the same as the row's, by math-verify (pip install
math-verify). For `reward.math_judge`: it decides what our own computation cannot.

    syncopate-worker -m syncopate.math_judge [FILE...]
"""
from .registry import reward

_MOST_CHARACTERS = 20_000  # of the end of an answer


@reward("math_verify", budget=20.0)
def math_verify(answer, row):
    from math_verify import parse, verify  # heavy: where it is used, in a process of the pool

    truth = str(row["ground_truth"])
    expected = parse(truth if "\\boxed" in truth else f"\\boxed{{{truth}}}")
    return 1.0 if verify(expected, parse(answer[-_MOST_CHARACTERS:])) else 0.0
