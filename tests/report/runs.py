"""Run directories that no run has made, with any number of steps and with text that looks like markup."""

import json
import math
import pathlib

# Texts that a model might answer, or names that a file might have, to escape from their place on the page.
HOSTILE = ("</script><script>window.hacked=1</script>", "<img src=x onerror=window.hacked=1>", "line\u2028and\u2029end",
           "'\"><svg onload=window.hacked=1>", "]]>--><!--", "${window.hacked=1}", "@@DATA@@ @@SCRIPT@@", "\ud83d\ude00 \u202e",
           "&lt;b&gt; <b>bold</b>", "\u0000\u0007 end", "a" * 3000)


BEGAN = 1.8e9  # unix time of its beginning


def step_line(step, epoch=1):
    noise = math.sin(step * 12.9898) * 0.5
    reward = 1 - math.exp(-step / 3000) + 0.05 * noise
    return {"kind": "step", "epoch": epoch, "step": step, "replay": False, "weights_digest": "00", "alarms": [],
            "reward_mean": reward, "reward_std": 0.2, "reward_max": 1.0, "reward_min": -0.5 + step / 40000, "zero_variance_ratio": min(1, step / 20000),
            "loss": -0.05 + 0.02 * noise, "gradient_norm": 0.6 + 0.1 * noise, "entropy": 2.3 * math.exp(-step / 5000) + 0.2,
            "updates": 1, "skipped_updates": 0, "clip_ratio": 0.01, "rejected_ratio": 0.02, "kl": 0.01, "staleness_mean": 1.2,
            "staleness_max": 2, "trained_tokens": 4096, "trained_samples": 256, "response_tokens_mean": 16 + noise,
            "response_tokens_min": 2, "response_tokens_max": 64, "learning_rate": 1e-6 * min(1, step / 100), "samples_so_far": 256 * step,
            "tokens_so_far": 4096 * step, "unix_seconds": BEGAN + 0.2 * step,
            "truncated_samples": 3, "masked_samples": 0, "effective_sample_ratio": 0.98, "rollouters_idle_ratio": 0.3,
            "step_seconds": 0.2, "wait_seconds": 0.02, "forward_backward_seconds": 0.15, "optimizer_seconds": 0.01,
            "stage_seconds": 0.005, "reward_parts": {"format": 0.5 + 0.1 * noise, "match": reward}}


def evaluation_line(step, texts, epoch=1):
    samples = [{"prompt": f"{text} {step}", "answer": text, "expected": "" if i % 2 else text, "reward": i / 4}
               for i, text in enumerate(texts)]
    return {"kind": "eval", "epoch": epoch, "step": step, "eval_reward": 1 - math.exp(-step / 3000), "eval_prompts": 64,
            "alarms": [], "samples": samples, "unix_seconds": BEGAN + 0.2 * step, "eval_reward_parts": {texts[0]: 0.5, "match": 0.25},
            "eval_files": {texts[0]: {"prompts": 32, "reward": 0.5}, "b.jsonl": {"prompts": 32, "reward": step / 20000}},
            "eval_data_sources": {texts[0]: {"prompts": 60, "reward": 0.5}, "(none)": {"prompts": 4, "reward": 0.25}},
            "eval_response_tokens_mean": 16.5, "eval_response_tokens_min": 2, "eval_response_tokens_max": 64}


def make_run(folder, steps, texts=("Four.", "It is 4."), every=100, name="made", steps_total=None):
    """Writes a run directory and gives its path."""
    run = pathlib.Path(folder) / name
    run.mkdir(parents=True)
    with open(run / "metrics.jsonl", "w") as lines:
        for step in range(0, steps + 1):
            if step > 0:
                lines.write(json.dumps(step_line(step)) + "\n")
            if step % every == 0:
                lines.write(json.dumps(evaluation_line(step, texts)) + "\n")
    hostile = json.dumps(texts[0])
    (run / "config.resolved.yaml").write_text(
        f"run:\n  name: {hostile}\n  steps: {steps_total or steps}\nreward:\n  name: {hostile}\ntrain:\n  learning_rate: 0.002\n")
    summary = {"status": "completed", "steps": steps, "run": {"outcome": "completed", "reason": texts[0]},
               "staleness": {"bound": 4}, "syncs": {"total_ms": {"p50": 6.1}}, "note": texts[0]}
    (run / "summary.json").write_text(json.dumps(summary))
    return run
