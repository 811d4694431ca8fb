#!/usr/bin/env python3
"""A training step of a policy as fast as compiled Python makes it, for comparison with `syncopate bench train policy`.

Blocks of the decoder compiled by torch.compile, FlashAttention-2 over packed sequences, a head in chunks whose loss and
gradient are one Triton kernel, and torch's fused AdamW on float32 weights with a bfloat16 copy. Random weights and one random
batch; the loss is PPO's clipped surrogate with an entropy bonus, as token mean. One GPU. Needs torch 2.11 with its Triton.
With --lora R the weights are frozen, and adapters of rank R on all projections are trained: float32 with a bfloat16 copy, in
the compiled blocks, the A of a joint projection as one.

usage: bench/peers/train_compiled.py [--model qwen2.5-0.5b] [--tokens 16384] [--lora R] [--ragged] [--steps 12] [--seconds 240]
Progress goes to standard error; the last line of standard output is one JSON object.
"""

import argparse
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.nn.attention.varlen import varlen_attn

from peer_group import SHAPES

STARTED = time.monotonic()
LONGEST = 4096  # tokens of the longest sequence of a batch
CHUNK = 4096  # tokens whose logits exist at one time
EPS = 1e-6
CLIP_LOW, CLIP_HIGH, ENTROPY_BONUS = 0.8, 1.2, 0.001
MAX_GRADIENT_NORM = 1.0
WARM_SECONDS = 8  # steps before the measured ones, until clocks have settled under load
MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b")


def sequence_lengths(tokens, ragged):
    """All LONGEST tokens long, or log-normal from 256 to LONGEST; the last sequence takes what is left."""
    generator = torch.Generator().manual_seed(7)
    lengths = []
    while tokens > 0:
        wanted = LONGEST
        if ragged:
            wanted = max(256, math.exp(6.9 + 0.8 * torch.randn(1, generator=generator).item()))
        lengths.append(int(min(wanted, LONGEST, tokens)))
        tokens -= lengths[-1]
    return lengths


@triton.jit
def head_kernel(logits, target, old, advantage, weight, logprob_out, loss_out, columns, clip_low, clip_high, bonus,
                GRADIENTS: tl.constexpr, BLOCK: tl.constexpr):
    """A program for each token: log-sum-exp and entropy in one pass, the loss, then d loss / d logits over the logits."""
    LOG2E: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0).to(tl.int64)
    begin = logits + row * columns
    label = tl.load(target + row)
    # Before the reductions: their barriers keep this read before the writes over the same memory.
    chosen = tl.load(begin + label).to(tl.float32)
    largest = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)
    for i in range(0, columns, BLOCK):
        column = i + tl.arange(0, BLOCK)
        x = tl.load(begin + column, mask=column < columns, other=-1e30).to(tl.float32)
        larger = tl.maximum(largest, x)
        shrink = tl.exp2((largest - larger) * LOG2E)
        e = tl.exp2((x - larger) * LOG2E)
        total = total * shrink + e
        weighted = weighted * shrink + e * x
        largest = larger
    top = tl.max(largest, 0)
    shrink = tl.exp2((largest - top) * LOG2E)
    total_of_row = tl.sum(total * shrink, 0)
    log_sum = top + tl.log(total_of_row)
    entropy = log_sum - tl.sum(weighted * shrink, 0) / total_of_row
    logprob = chosen - log_sum
    a = tl.load(advantage + row)
    w = tl.load(weight + row)
    ratio = tl.exp(logprob - tl.load(old + row))
    plain = ratio * a
    clipped = tl.minimum(tl.maximum(ratio, clip_low), clip_high) * a
    tl.store(logprob_out + row, logprob)
    tl.store(loss_out + row, -w * (tl.minimum(plain, clipped) + bonus * entropy))
    if GRADIENTS:
        d_logprob = tl.where(plain <= clipped, -plain * w, 0.0)
        for i in range(0, columns, BLOCK):
            column = i + tl.arange(0, BLOCK)
            z = tl.load(begin + column, mask=column < columns, other=-1e30).to(tl.float32) - log_sum
            gradient = tl.exp2(z * LOG2E) * (bonus * w * (z + entropy) - d_logprob)
            tl.store(begin + column, tl.where(column == label, gradient + d_logprob, gradient), mask=column < columns)


class Head:
    """Log-probs, loss and gradients of the head, CHUNK tokens at a time in one buffer [CHUNK, vocabulary]."""

    def __init__(self, tokens, vocabulary, device):
        self.logits = torch.empty(min(CHUNK, tokens), vocabulary, device=device, dtype=torch.bfloat16)
        self.target = torch.randint(0, vocabulary, (tokens,), device=device)
        self.old = 0.1 * torch.randn(tokens, device=device) - math.log(vocabulary)
        self.advantage = torch.randn(tokens, device=device)
        self.weight = torch.full_like(self.old, 1.0 / tokens)
        self.logprob, self.loss = torch.empty_like(self.old), torch.empty_like(self.old)

    def run(self, hidden, embedding, d_hidden=None, d_embedding=None):
        """Fills logprob and loss and, where they are given, d_hidden and d_embedding (float32)."""
        gradients = d_hidden is not None
        for begin in range(0, len(hidden), CHUNK):
            part = slice(begin, min(begin + CHUNK, len(hidden)))
            logits = torch.mm(hidden[part], embedding.t(), out=self.logits[:part.stop - begin])
            rows = (t[part] for t in (self.target, self.old, self.advantage, self.weight, self.logprob, self.loss))
            head_kernel[(len(logits),)](logits, *rows, embedding.shape[0], CLIP_LOW, CLIP_HIGH, ENTROPY_BONUS, gradients,
                                        4096, num_warps=16)
            if not gradients:
                continue
            torch.mm(logits, embedding, out=d_hidden[part])
            if d_embedding is None:
                continue
            # bfloat16 operands, added up in float32.
            if begin == 0:
                torch.ops.aten.mm.dtype_out(logits.t(), hidden[part], torch.float32, out=d_embedding)
            else:
                torch.ops.aten.addmm.dtype_out(d_embedding, logits.t(), hidden[part], torch.float32, beta=1, alpha=1,
                                               out=d_embedding)


class HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(context, hidden, embedding, head):
        d_hidden = torch.empty_like(hidden)
        d_embedding = torch.empty_like(embedding, dtype=torch.float32) if embedding.requires_grad else None
        head.run(hidden, embedding, d_hidden, d_embedding)
        context.save_for_backward(d_hidden, d_embedding)
        return head.loss.sum()

    @staticmethod
    def backward(context, _):
        # The loss is the root, so its own gradient is 1.
        d_hidden, d_embedding = context.saved_tensors
        return d_hidden, None if d_embedding is None else d_embedding.to(torch.bfloat16), None


def linear(x, weight, adapters, bias=None):
    """`adapters`: none, or A of a joint projection and the B of each of its parts. Their scale is 2."""
    y = F.linear(x, weight, bias)
    if not adapters:
        return y
    a, *b = adapters
    parts = F.linear(x, a).chunk(len(b), -1)
    return y + 2 * torch.cat([F.linear(part, one) for part, one in zip(parts, b)], -1)


def block(x, weights, adapters, cos, sin, bounds, longest, heads, pairs, head_dim):
    """One layer of the decoder over packed sequences. `adapters`: none, or those of qkv, proj, gate_up and down."""
    norm1, qkv, qkv_bias, proj, norm2, gate_up, down = weights
    of_qkv, of_proj, of_gate_up, of_down = adapters or ((), (), (), ())
    tokens, width = x.shape
    h = F.rms_norm(x, (width,), norm1, EPS)
    qk, v = linear(h, qkv, of_qkv, qkv_bias).view(tokens, heads + 2 * pairs, head_dim).split([heads + pairs, pairs], 1)
    left, right = qk.chunk(2, -1)
    qk = qk * cos + torch.cat((-right, left), -1) * sin
    q, k = qk.split([heads, pairs], 1)
    causal = (-1, 0)
    a = varlen_attn(q, k, v, bounds, bounds, longest, longest, window_size=causal).reshape(tokens, -1)
    x = x + linear(a, proj, of_proj)
    h = F.rms_norm(x, (width,), norm2, EPS)
    gate, up = linear(h, gate_up, of_gate_up).chunk(2, -1)
    return x + linear(F.silu(gate) * up, down, of_down)


class Trainer:
    """Weights, optimizer and one batch; step() trains on it, logprobs() is a pass without gradients."""

    def __init__(self, shape, lengths, rank):
        torch.manual_seed(0)
        device, tokens = "cuda", sum(lengths)
        self.shape = shape

        def ones():
            return torch.ones(shape.hidden, device=device)

        def normal(*size):
            return torch.empty(size, device=device).normal_(0, 0.02)

        qkv = (shape.heads + 2 * shape.key_value_heads) * shape.head_dim
        self.masters = [normal(shape.vocabulary, shape.hidden), ones()]
        for _ in range(shape.layers):
            self.masters += [ones(), normal(qkv, shape.hidden), normal(qkv),
                             normal(shape.hidden, shape.heads * shape.head_dim), ones(),
                             normal(2 * shape.intermediate, shape.hidden), normal(shape.hidden, shape.intermediate)]
        self.copies = [master.to(torch.bfloat16, copy=True).requires_grad_(rank == 0) for master in self.masters]
        self.embedding, self.norm, *rest = self.copies
        self.layers = [rest[i:i + 7] for i in range(0, len(rest), 7)]
        self.adapters = [()] * len(self.layers)
        if rank > 0:
            q, pair = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
            # A and then B of each projection: of qkv, proj, gate_up, down.
            sizes = [[(3 * rank, shape.hidden), (q, rank), (pair, rank), (pair, rank)], [(rank, q), (shape.hidden, rank)],
                     [(2 * rank, shape.hidden), (shape.intermediate, rank), (shape.intermediate, rank)],
                     [(rank, shape.intermediate), (shape.hidden, rank)]]
            self.masters = [normal(*size) for _ in self.layers for projection in sizes for size in projection]
            self.copies = [master.to(torch.bfloat16, copy=True).requires_grad_() for master in self.masters]
            copies = iter(self.copies)
            self.adapters = [[[next(copies) for _ in projection] for projection in sizes] for _ in self.layers]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-6, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
        self.block = torch.compile(block, fullgraph=True, dynamic=False)

        self.ids = torch.randint(0, shape.vocabulary, (tokens,), device=device)
        self.head = Head(tokens, shape.vocabulary, device)
        position = torch.cat([torch.arange(length) for length in lengths]).float()
        angle = position[:, None] / 1e6 ** (torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angle = torch.cat((angle, angle), -1)[:, None].to(device)
        bounds = torch.tensor([0] + lengths).cumsum(0).to(device, torch.int32)
        self.context = (angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16), bounds, max(lengths), shape.heads,
                        shape.key_value_heads, shape.head_dim)

    def hidden(self):
        x = F.embedding(self.ids, self.embedding)
        for layer, adapters in zip(self.layers, self.adapters):
            x = self.block(x, layer, adapters, *self.context)
        return F.rms_norm(x, (self.shape.hidden,), self.norm, EPS)

    def step(self):
        HeadLoss.apply(self.hidden(), self.embedding, self.head).backward()
        for master, copy in zip(self.masters, self.copies):
            master.grad, copy.grad = copy.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.masters, MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_copy_(self.copies, self.masters)

    def logprobs(self):
        with torch.no_grad():
            self.head.run(self.hidden(), self.embedding)


def timed(call, count, until):
    """Milliseconds on the device of `count` calls back to back, or of fewer, one at least, when `until` passes."""
    def mark():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    marks = [mark()]
    while len(marks) <= count and (len(marks) == 1 or time.monotonic() < until):
        call()
        marks.append(mark())
        marks[-2].synchronize()  # the host runs one call ahead
    marks[-1].synchronize()
    return [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]


def say(text):
    print(f"[{time.monotonic() - STARTED:.0f} s] {text}", file=sys.stderr, flush=True)


def measure(arguments):
    end = STARTED + arguments.seconds
    lengths = sequence_lengths(arguments.tokens, arguments.ragged)
    trainer = Trainer(SHAPES[arguments.model], lengths, arguments.lora)
    say(f"{torch.cuda.get_device_name()}, {arguments.model}, {len(lengths)} sequences, longest {max(lengths)}; compiling")
    timed(trainer.step, 2, end)
    timed(trainer.logprobs, 2, end)
    warm = timed(trainer.step, sys.maxsize, min(end, time.monotonic() + WARM_SECONDS))
    say(f"compiled; {len(warm)} steps to warm up, median of the first five {statistics.median(warm[:5]):.1f} ms")

    torch.cuda.reset_peak_memory_stats()
    steps = timed(trainer.step, arguments.steps, end)
    peak, loss = torch.cuda.max_memory_allocated(), trainer.head.loss.sum().item()
    passes = timed(trainer.logprobs, arguments.steps, end)
    if not math.isfinite(loss):
        sys.exit(f"train_compiled: the loss is {loss}")
    step_ms, pass_ms = statistics.median(steps), statistics.median(passes)
    say(f"steps {min(steps):.1f} to {max(steps):.1f} ms, log-prob passes {min(passes):.1f} to {max(passes):.1f} ms")
    return {"model": arguments.model, "lora": arguments.lora, "tokens_per_step": arguments.tokens,
            "sequences": len(lengths), "ms_per_step": round(step_ms, 2),
            "tokens_per_second": round(arguments.tokens / step_ms * 1e3),
            "logprob_tokens_per_second": round(arguments.tokens / pass_ms * 1e3), "peak_gib": round(peak / 2**30, 2),
            "loss": loss, "steps": len(steps), "torch": torch.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--tokens", type=int, default=16384, help="tokens of a step")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters; 0: all weights are trained")
    parser.add_argument("--ragged", action="store_true", help="lengths that vary, in place of equal ones")
    parser.add_argument("--steps", type=int, default=12, help="measured steps")
    parser.add_argument("--seconds", type=float, default=240, help="after so long no further step begins")
    arguments = parser.parse_args()
    if arguments.tokens < 1 or arguments.steps < 1:
        parser.error("--tokens and --steps must be positive")
    if not torch.cuda.is_available():
        sys.exit("train_compiled: there is no CUDA GPU here")
    print(json.dumps(measure(arguments)), flush=True)


if __name__ == "__main__":
    main()
