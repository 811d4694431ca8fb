#!/usr/bin/env python3
"""usage: scripts/arithmetic_data.py FOLDER [--largest N] [--evaluate SHARE] [--seed N] [--products]

Writes FOLDER/train.jsonl and FOLDER/eval.jsonl: sums of two numbers below 100 in words, "forty-two plus nine" ->
"fifty-one". With --products, products of two numbers from 10 to 99, "47*83" -> "3901", and under "turns" how the
environment `calculator` is asked for it. Every task is in one of the two files, none in both. Needs Python alone.
"""
import argparse
import json
import pathlib
import random

ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
        "eighteen nineteen").split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number):
    if number >= 100:
        return "one hundred" if number == 100 else "one hundred " + in_words(number - 100)
    if number < 20:
        return ONES[number]
    return TENS[number // 10] + ("" if number % 10 == 0 else "-" + ONES[number % 10])


def sum_row(a, b):
    return {"prompt": f"{in_words(a)} plus {in_words(b)}", "answer": in_words(a + b)}


def product_row(a, b):
    question, answer = f"{a}*{b}", str(a * b)
    return {"prompt": question, "answer": answer,
            "turns": [{"role": "assistant", "content": f"calc:{question}"}, {"role": "user", "content": answer},
                      {"role": "assistant", "content": answer}]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--largest", type=int, default=99, help="of the two numbers")
    parser.add_argument("--evaluate", type=float, default=0.05, help="share of the sums that are kept for evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--products", action="store_true", help="products, for the environment calculator")
    options = parser.parse_args()
    least, row = (10, product_row) if options.products else (0, sum_row)
    pairs = [(a, b) for a in range(least, options.largest + 1) for b in range(least, options.largest + 1)]
    random.Random(options.seed).shuffle(pairs)
    evaluated = max(1, int(len(pairs) * options.evaluate))
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("eval.jsonl", pairs[:evaluated]), ("train.jsonl", pairs[evaluated:])):
        with open(options.folder / name, "w", encoding="utf-8") as out:
            for a, b in part:
                out.write(json.dumps(row(a, b)) + "\n")
    print(f"{options.folder}: {len(pairs) - evaluated} tasks to train on, {evaluated} to evaluate")


if __name__ == "__main__":
    main()
