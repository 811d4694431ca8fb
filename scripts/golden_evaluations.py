#!/usr/bin/env python3
"""usage: scripts/golden_evaluations.py > tests/unit/trainer/data/golden/evaluations.txt

Random tables of right and wrong answers with their pass@k, majorities, mean rewards and intervals, in exact fractions, for
sampled_figures_test. pass@k is what it is defined as: the share of all sets of k answers that hold a right one, counted set
by set where there are few, and by binomial coefficients where there are many. Needs Python's standard library.
"""
import collections
import fractions
import itertools
import math
import random
import statistics

FEW = 12  # answers of which all sets are looked at


def pass_at_k(answers, right, k):
    if answers <= FEW:
        sets = list(itertools.combinations(range(answers), k))
        return fractions.Fraction(sum(any(answer < right for answer in one) for one in sets), len(sets))
    return 1 - fractions.Fraction(math.comb(answers - right, k), math.comb(answers, k))


def majority(votes):
    """Whether the answer with the most votes is right; of several, the share of right votes. `votes`: (answer, is right)."""
    counts = collections.Counter(answer for answer, _ in votes)
    if not counts:
        return fractions.Fraction(0)
    most = max(counts.values())
    leading = [is_right for answer, is_right in votes if counts[answer] == most]
    return fractions.Fraction(sum(leading), len(leading))


def interval(values):
    """Half the width of the interval of 95 %, by the standard error of the mean."""
    return statistics.NormalDist().inv_cdf(0.975) * statistics.stdev(values) / math.sqrt(len(values))


def powers(samples):
    return sorted({2**i for i in range(samples.bit_length()) if 2**i <= samples} | {samples})


def main():
    dice = random.Random(20251125)
    print("# Made by scripts/golden_evaluations.py. A table: 'table SAMPLES PROMPTS', a line 'answers right reward votes' for each")
    print("# prompt (a and b are right answers), 'reward MEAN INTERVAL', 'majority MEAN INTERVAL', a line 'pass K MEAN INTERVAL' for each k that a prompt has answers for, 'end'.")
    for samples in (1, 2, 3, 8, 12, 32, 64, 256):
        for _ in range(6):
            prompts = []
            for _ in range(dice.randint(2, 20)):
                answers = samples if dice.random() < 0.7 else dice.randint(0, samples)
                skill = dice.choice((0.0, 0.02, 0.3, 0.7, 1.0))
                right = sum(dice.random() < skill for _ in range(answers))
                partial = sum(dice.choice((0, 1, 2, 3)) for _ in range(answers - right))
                # Right answers have one of two texts, wrong ones one of several; some texts have no answer that can be found.
                votes = [(dice.choice(("a", "b")), True) for _ in range(right) if dice.random() < 0.9]
                votes += [(dice.choice("cdefg"), False) for _ in range(answers - right) if dice.random() < 0.9]
                prompts.append((answers, right, fractions.Fraction(4 * right + partial, 4), votes))
            answered = [prompt for prompt in prompts if prompt[0] > 0]
            if len(answered) < 2:
                continue
            print("table", samples, len(prompts))
            for answers, right, reward, votes in prompts:
                print(answers, right, float(reward), "".join(answer for answer, _ in votes) or "-")
            means = [reward / answers for answers, _, reward, _ in answered]
            print("reward", float(statistics.mean(means)), repr(interval([float(mean) for mean in means])))
            if any(votes for _, _, _, votes in answered):
                shares = [majority(votes) for _, _, _, votes in answered]
                print("majority", float(statistics.mean(shares)), repr(interval([float(share) for share in shares])))
            for k in powers(samples):
                values = [pass_at_k(answers, right, k) for answers, right, _, _ in prompts if answers >= k]
                if not values:
                    continue
                width = repr(interval([float(value) for value in values])) if len(values) > 1 else "none"
                print("pass", k, float(statistics.mean(values)), width)
            print("end")


if __name__ == "__main__":
    main()
