#!/usr/bin/env python3
"""usage: golden_losses.py DIR        (any Python with torch; nothing is imported from this repository)

Writes DIR/random_<seed>.txt: losses of random batches by torch's autograd in float64, in padded rectangles, which
tests/unit/trainer/loss/random_losses_test.cc compares with the packed implementation. Inputs are drawn from
splitmix64, which the test repeats, so that the files hold results alone. A line is

    <key>=<value> ... | <loss> <sum of gradient> <sum of |gradient|> <sum of gradient x (1 + token index mod 7)>
"""
import math, sys
import torch

torch.set_default_dtype(torch.float64)
MASK64 = (1 << 64) - 1
INF = float("inf")


class Draws:
    """Uniform numbers in [0, 1): splitmix64 of seed and count."""

    def __init__(self, seed):
        self.state = seed

    def __call__(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK64
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
        return ((z ^ (z >> 31)) >> 11) / float(1 << 53)

    def integer(self, bound):
        return int(self() * bound)


def make_batch(seed):
    """Answers in groups, with holes in their masks, extremes, groups of one, equal rewards, and empty masks."""
    draw = Draws(seed)
    groups, longest = 2 + draw.integer(10), 1 + draw.integer(128)
    rows = []
    for g in range(groups):
        members, equal = 1 + draw.integer(7), draw() < 0.2
        for i in range(members):
            row = dict(group=g, reward=0.5 if equal else draw.integer(5) / 4, b=[], o=[], n=[], ref=[], age=[], mask=[])
            empty, length = draw() < 0.1, 1 + draw.integer(longest)
            for t in range(length):
                b, spread = -4 * draw(), 2 * draw() - 1
                if draw() < 0.02:
                    spread = 30 if draw() < 0.5 else -30
                o = b + 0.8 * spread
                if draw() < 0.01:
                    b = -INF
                n = o + 0.6 * (2 * draw() - 1)
                if draw() < 0.01 and seed % 4 == 3:  # one such loss hides all others
                    n = o + 25
                row["b"].append(b), row["o"].append(o), row["n"].append(n)
                row["ref"].append(n + 1.5 * (2 * draw() - 1)), row["age"].append(draw.integer(12))
                row["mask"].append(0.0 if empty or draw() < 0.15 else 1.0)
            rows.append(row)
    width = max(len(r["b"]) for r in rows)
    pad = lambda key, fill: torch.tensor([r[key] + [fill] * (width - len(r[key])) for r in rows])
    batch = {k: pad(k, 0.0) for k in ("b", "o", "n", "ref", "mask")}
    batch["age"] = pad("age", 0).double()
    batch["group"] = [r["group"] for r in rows]
    # GRPO of each group: (r - mean) / (unbiased std + 1e-6); groups of one, or of equal rewards: 0.
    adv = torch.zeros(len(rows))
    for g in range(groups):
        at = [i for i, r in enumerate(rows) if r["group"] == g]
        r = torch.tensor([rows[i]["reward"] for i in at])
        if len(at) > 1 and r.max() > r.min():
            adv[at] = (r - r.mean()) / (r.std() + 1e-6)
    batch["A"] = adv.view(-1, 1).expand(-1, width).clone()
    return batch


def seq(x, m, how):
    x = x.detach()
    if how == "sum":
        return (x * m).sum(1, keepdim=True)
    if how == "mean":
        return (x * m).sum(1, keepdim=True) / m.sum(1, keepdim=True).clamp(min=1)
    fill = INF if how == "min" else -INF
    x = torch.where(m > 0, x, torch.full_like(x, fill))
    return x.min(1, keepdim=True).values if how == "min" else x.max(1, keepdim=True).values


def loss_of(batch, c):
    b, o, ref, m, A, age = (batch[k] for k in ("b", "o", "ref", "mask", "A", "age"))
    n = batch["n"].clone().requires_grad_(True)
    bound = lambda x: x.clamp(-20, 20)
    get = lambda key, default: float(c.get(key, default))
    lo, hi = get("clip_low", 0.2), get("clip_high", 0.28)
    prox, surrogate, correction = c.get("proximal", "recompute"), c.get("surrogate", "ppo"), c.get("correction", "none")
    if prox.startswith("a3po"):
        lv = bound(n - b)
        alpha = age / (age + 1)
        v = lv.detach()
        log_rho = torch.log((1 - alpha) + alpha * v.exp()) if prox == "a3po_linear" else alpha * v
        lr = lv - log_rho
    else:
        log_rho = bound(o - b)
        lr = bound(n - (b if prox == "bypass" else o))
    rho, u = log_rho.exp(), lr.exp()

    def ppo(ratio):
        l = torch.maximum(-A * ratio, -A * ratio.clamp(1 - lo, 1 + hi))
        if "dual_clip" in c:
            l = torch.where(A < 0, torch.minimum(-A * get("dual_clip", 3), l), l)
        return l

    if surrogate == "ppo":
        l = ppo(u)
    elif surrogate == "gspo":
        l = ppo((seq(lr, m, "mean") + lr - lr.detach()).exp())
    elif surrogate == "cispo":
        l = -u.detach().clamp(1 - lo, 1 + hi) * A * n
    elif surrogate == "reinforce":
        l = -A * n
    elif surrogate == "aipo":
        l = -u.detach().clamp(max=get("tis_cap", 2)) * A * n
    elif surrogate == "sapo":
        tau = torch.where(A > 0, torch.tensor(1.0), torch.tensor(1.05))
        l = -(4 / tau) * torch.sigmoid(tau * (u - 1)) * A
    elif surrogate == "dppo":
        d = (n.exp() - b.exp()).detach()
        l = -(~torch.where(A > 0, d > hi, d < -lo)).double() * A * u
    product, geo = bound(seq(log_rho, m, "sum")).exp(), seq(log_rho, m, "mean").exp()
    inside = lambda x, low, high: ((x >= low) & (x <= high)).double()
    w = {
        "none": lambda: torch.ones_like(rho),
        "mis": lambda: rho * inside(rho, 0.5, 2),
        "tis": lambda: rho.clamp(get("tis_floor", 0), get("tis_cap", 2)),
        "seq_tis": lambda: product.clamp(max=5).expand_as(rho),
        "seq_mis": lambda: inside(product, 0.5, 2).expand_as(rho),
        "geometric": lambda: inside(geo, 0.9, 1.1).expand_as(rho),
        "seq_mask_tis": lambda: inside(geo, 0.9, 1.1) * rho.clamp(max=2),
    }[correction]()
    if "rejection" in c:
        k = {"k1": -log_rho, "k2": 0.5 * log_rho**2, "k3": rho - 1 - log_rho}[c["rejection"]]
        level = c.get("rejection_level", "token")
        k = k if level == "token" else seq(k, m, level)
        w = w * inside(k, get("rejection_low", 0), get("rejection_high", 1))
    if "veto" in c:
        w = w * (seq(rho, m, "min") >= get("veto", 0))
    if "opsm_delta" in c:
        w = w * (1 - ((A < 0) & (seq(-lr, m, "mean") > get("opsm_delta", 0))).double())
    l = w.detach() * l
    if "kl_tau" in c:
        l = l + get("kl_tau", 0) * bound(n - b) ** 2
    if "kl_coefficient" in c:
        x = (n - ref).clamp(-20, 20)
        k2, k3 = x**2 / 2, (-x).exp() - 1 + x
        estimator = c.get("kl_estimator", "k3_plus")
        kl = {"k1": x, "k2": k2, "k3": k3, "k3_plus": k3.detach() + k2 - k2.detach()}[estimator]
        kl = kl * u if "kl_importance" in c else kl
        l = l + get("kl_coefficient", 0) * kl.clamp(-10, 10)
    # Rectangles hold -inf and padding where nothing is trained on: keep them out of sums and gradients.
    l = torch.where(m > 0, l, torch.zeros_like(l))
    tokens, answers = m.sum(), (m.sum(1) > 0).sum()
    per_seq, count = l.sum(1), m.sum(1).clamp(min=1)
    aggregation = c.get("aggregation", "token_mean")
    if aggregation == "token_mean":
        total = l.sum() / tokens
    elif aggregation == "token_sum":
        total = l.sum()
    elif aggregation == "seq_mean_token_sum":
        total = per_seq.sum() / answers
    elif aggregation == "seq_mean_token_mean":
        total = (per_seq / count).sum() / answers
    elif aggregation == "seq_mean_token_sum_norm":
        total = per_seq.sum() / (answers * 128)
    else:
        groups = {}
        for i, g in enumerate(batch["group"]):
            groups.setdefault(g, []).append(i)
        means = [l[at].sum() / m[at].sum() for at in groups.values() if m[at].sum() > 0]
        total = torch.stack(means).sum() / len(means)
    total.backward()
    grad = n.grad[m > 0]
    index = torch.arange(grad.numel()) % 7 + 1.0
    return [total.item(), float(grad.sum()), float(grad.abs().sum()), float((grad * index).sum())]


CASES = """
surrogate=ppo correction=mis
surrogate=ppo correction=tis dual_clip=3
surrogate=ppo correction=tis tis_floor=0.5 tis_cap=2
surrogate=ppo correction=none proximal=bypass
surrogate=ppo correction=none proximal=recompute aggregation=token_sum
surrogate=ppo correction=seq_tis aggregation=seq_mean_token_sum
surrogate=ppo correction=seq_mis aggregation=seq_mean_token_mean
surrogate=ppo correction=geometric aggregation=seq_mean_token_sum_norm
surrogate=ppo correction=seq_mask_tis aggregation=prompt_mean
surrogate=ppo correction=mis rejection=k1 rejection_low=-0.3 rejection_high=0.3
surrogate=ppo correction=tis rejection=k2 rejection_level=max rejection_high=0.2
surrogate=ppo correction=tis rejection=k3 rejection_level=mean rejection_high=0.05
surrogate=ppo correction=tis rejection=k3 rejection_level=sum rejection_high=2
surrogate=ppo correction=tis veto=1e-4
surrogate=ppo correction=tis proximal=a3po
surrogate=ppo correction=mis proximal=a3po_linear
surrogate=ppo correction=mis opsm_delta=0.02
surrogate=gspo correction=none proximal=bypass clip_low=3e-4 clip_high=4e-4 aggregation=seq_mean_token_mean
surrogate=gspo correction=seq_tis clip_low=0.05 clip_high=0.05 aggregation=seq_mean_token_mean
surrogate=cispo correction=tis clip_low=1 clip_high=4
surrogate=cispo correction=none proximal=bypass
surrogate=reinforce correction=tis
surrogate=reinforce correction=none proximal=bypass
surrogate=aipo correction=none proximal=bypass
surrogate=sapo correction=tis
surrogate=dppo correction=none proximal=bypass clip_low=0.2 clip_high=0.2 kl_tau=1e-3
surrogate=ppo correction=mis kl_coefficient=0.1 kl_estimator=k2
surrogate=ppo correction=mis kl_coefficient=0.1 kl_estimator=k3
surrogate=ppo correction=mis kl_coefficient=0.1 kl_estimator=k3_plus
surrogate=ppo correction=none proximal=bypass kl_coefficient=0.1 kl_estimator=k3 kl_importance=1
surrogate=ppo correction=mis kl_coefficient=0.1 kl_estimator=k1 kl_importance=1
"""

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for seed in range(8):
        batch = make_batch(seed)
        with open(f"{sys.argv[1]}/random_{seed}.txt", "w") as out:
            out.write(f"# {int(batch['mask'].sum())} tokens\n")
            for case in CASES.strip().splitlines():
                figures = loss_of(batch, dict(word.split("=") for word in case.split()))
                out.write(case + " | " + " ".join(f"{x:.12g}" for x in figures) + "\n")
