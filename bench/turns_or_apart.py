#!/usr/bin/env python3
"""usage: turns_or_apart.py [--model 0.5b|1.5b] [--answers 512] [--prompt 8] [--lengths 256,...] [--cards 2,4,8] [--PART VALUE ...]

Seconds of a training step on N cards that take turns (all generate, then all train) and on N cards of which k train and N - k
generate at the same time, with the best k. Computed from measured parts, which a model of --model has already and each of
which can be given anew:

    --decode-ms         of a decode step whatever its batch                              f
    --sequence-us       more for each sequence                                           s
    --context-ns        more for each token that a sequence attends to                   c
    --train-us          of training, a token in an answer of --train-length              t
    --attention-share   of that time, which grows with the length                        a
    --turn-seconds      load, offload, until rollouters have left, weight sync           u
    --rank-efficiency   of each rank when several train, against one alone               e
    --slots             sequences that a card decodes at a time, at most
    --kv-tokens         for whose keys and values a card has room

    generate(cards, L) = r * L * (f + b * (s + c * (prompt + L / 2)))
                         b = min(answers / cards, slots, kv-tokens / (prompt + L)) at a time; r = answers / cards / b
    train(cards, L)    = answers * (prompt + L) * t * (1 - a + a * L / train-length) / (cards * e)        e is 1 on one card
    turns(N, L)        = generate(N, L) + train(N, L) + u / N
    apart(N, L)        = min over k of max(generate(N - k, L), train(k, L))

Assumed: all answers have L tokens; `apart` overlaps entirely (staleness.max_staleness 1 or more, syncs that nobody waits for);
the state fits, and is shared evenly by the ranks, so that a turn's moves shrink with N. Daemons took turns on several cards
with a small model only, so `turns` of several cards is computed. Standard library only.
"""

import argparse
import sys

# docs/performance.md, one H100 80GB. Generation: "One card in turns", 512 sequences at a context of 528 for 1024 steps take
# 3.27 s and 6.67 s. `sequence_us` is from "Generation on one GPU", batches of 256 and 512 at a context of 1024 on an H200,
# less the context's part; `context_ns` is what a token's keys and values are (12,288 and 28,672 bytes) over the card's 3.35
# TB/s (4.8 there). `attention_share` is by operations. `rank_efficiency` is "Ranks on two GPUs", two ranks against one.
# `kv_tokens`: 63 GiB of the card.
MODELS = {
    "0.5b": {"decode_ms": 1.02, "sequence_us": 2.30, "context_ns": 3.67, "train_us": 7.10, "train_length": 1032,
             "attention_share": 0.043, "turn_seconds": 0.296, "rank_efficiency": 0.944, "slots": 512,
             "kv_tokens": 5_500_000},
    "1.5b": {"decode_ms": 1.49, "sequence_us": 5.31, "context_ns": 8.56, "train_us": 17.90, "train_length": 1032,
             "attention_share": 0.028, "turn_seconds": 0.851, "rank_efficiency": 0.916, "slots": 512,
             "kv_tokens": 2_200_000},
}


def generate(cards, length, parts, answers, prompt):
    each = answers / cards
    at_a_time = min(each, parts["slots"], parts["kv_tokens"] / (prompt + length))
    step = parts["decode_ms"] / 1e3 + at_a_time * (
        parts["sequence_us"] / 1e6 + parts["context_ns"] / 1e9 * (prompt + length / 2))
    return each / at_a_time * length * step


def train(cards, length, parts, answers, prompt):
    growth = 1 + parts["attention_share"] * (length / parts["train_length"] - 1)
    efficiency = parts["rank_efficiency"] if cards > 1 else 1
    return answers * (prompt + length) * parts["train_us"] / 1e6 * growth / (cards * efficiency)


def turns(cards, length, parts, answers, prompt):
    return (generate(cards, length, parts, answers, prompt) + train(cards, length, parts, answers, prompt) +
            parts["turn_seconds"] / cards)


def apart(cards, length, parts, answers, prompt):
    """(seconds, the number of cards that train)"""
    return min((max(generate(cards - k, length, parts, answers, prompt), train(k, length, parts, answers, prompt)), k)
               for k in range(1, cards))


def table(parts, lengths, cards, answers, prompt):
    """Markdown; the shorter time is bold."""
    head = ["tokens of an answer", "1 card, in turns"]
    head += [f"{n} cards, {how}" for n in cards for how in ("in turns", "apart (k train)")]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for length in lengths:
        row = [f"{length}", f"{turns(1, length, parts, answers, prompt):.2f}"]
        for n in cards:
            together, (separate, k) = turns(n, length, parts, answers, prompt), apart(n, length, parts, answers, prompt)
            texts = [f"{together:.2f}", f"{separate:.2f}"]
            best = 0 if together < separate else 1
            texts[best] = f"**{texts[best]}**"
            row += [texts[0], f"{texts[1]} ({k})"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="0.5b")
    parser.add_argument("--answers", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=8)
    parser.add_argument("--lengths", type=numbers, default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--cards", type=numbers, default=[2, 4, 8])
    for part, value in MODELS["0.5b"].items():
        parser.add_argument("--" + part.replace("_", "-"), type=type(value))
    options = parser.parse_args()
    given = {part: getattr(options, part) for part in MODELS[options.model] if getattr(options, part) is not None}
    if min(options.cards) < 2:
        parser.error("--cards: apart there are two at least")
    print(table(MODELS[options.model] | given, options.lengths, options.cards, options.answers, options.prompt))
    return 0


if __name__ == "__main__":
    sys.exit(main())
