#!/usr/bin/env python3
"""What staleness.on_deadline costs and gives with daemons: answers of log-normal length, and each mode in turn.

usage: bench/deadlines.py BINARY_FOLDER [--steps 150] [--bounds 1,2,4] [--modes stall,mask,drop] [--repeat 1]
       bench/deadlines.py --make FOLDER

Starts whole runs by `syncopate run` on this machine, on CPUs, of a model that answers each prompt with a length of its own:
the mean lengths of the prompts are the quantiles of a log-normal distribution of sigma 1, and the answers of one prompt are
geometric about its mean. Training leaves the model as it is (its learning rate is as good as 0), so every mode draws from
the same lengths. Prints a JSON object for each run. `trained_length_ratio` is the mean number of tokens of an answer that were
trained over the mean that the model draws. --make writes that model and its data alone. Needs Python's standard library.
"""
import argparse
import json
import math
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import tiny_model  # noqa: E402

KINDS = 16  # of prompts: one letter each, which the answer repeats until it ends
MEDIAN, SIGMA = 24.0, 1.0  # of the mean lengths, in tokens
LONGEST = 384  # of an answer
HIDDEN = 2 * KINDS
CERTAIN = 20.0  # logit of what may follow, above all other tokens


def mean_lengths():
    normal = statistics.NormalDist()
    return [MEDIAN * math.exp(SIGMA * normal.inv_cdf((kind + 0.5) / KINDS)) for kind in range(KINDS)]


def drawn_length():
    """The mean of what the model draws: geometric lengths, cut off at the longest."""
    return statistics.mean(mean * (1 - (1 - 1 / mean)**LONGEST) for mean in mean_lengths())


def weights_of(shape, letters, end):
    """{name: values}. No layer adds anything, so the next token depends on the last one alone: it or the end."""
    values = {name: [1.0] * dims[0] if len(dims) == 1 else [0.0] * (dims[0] * dims[1])
              for name, dims in tensors_of(shape)}
    scale = HIDDEN**0.5  # of a one-hot vector behind the norm
    for kind, (letter, mean) in enumerate(zip(letters, mean_lengths())):
        ends = 1 / mean
        values["model.embed_tokens.weight"][letter * HIDDEN + kind] = 1.0
        values["lm_head.weight"][letter * HIDDEN + kind] = CERTAIN / scale
        values["lm_head.weight"][end * HIDDEN + kind] = (CERTAIN + math.log(ends / (1 - ends))) / scale
    return values


def tensors_of(shape):
    yield from tiny_model.tensors(shape)
    yield "lm_head.weight", [shape["vocab_size"], shape["hidden_size"]]


def write_model(folder):
    words = tiny_model.tokenizer([], 0)
    ids = {token["content"]: token["id"] for token in words["added_tokens"]}
    end = ids["<|im_end|>"]
    shape = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": max(ids.values()) + 1,
             "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": LONGEST + 16, "rope_theta": 10000.0,
             "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
             "dtype": "float32", "bos_token_id": None, "eos_token_id": end}
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": shape, "generation_config.json": {"eos_token_id": end}, "tokenizer.json": words,
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, ensure_ascii=False) + "\n")
    letters = [words["model"]["vocab"][letter] for letter in names()]
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    values = weights_of(shape, letters, end)
    for name, dims in tensors_of(shape):
        blob = struct.pack(f"<{len(values[name])}f", *values[name])
        header[name] = {"dtype": "F32", "shape": dims, "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def names():
    return [chr(ord("a") + kind) for kind in range(KINDS)]


def make(folder):
    """The model, prompts of every kind, and a configuration of a run on them."""
    write_model(folder / "model")
    rows = "".join(json.dumps({"prompt": name, "answer": ""}) + "\n" for _ in range(64) for name in names())
    (folder / "rows.jsonl").write_text(rows)
    (folder / "deadlines.yaml").write_text(f"""run: {{name: deadlines, rollouters: 2}}
model: {{path: {folder / 'model'}}}
data: {{files: [{folder / 'rows.jsonl'}], max_prompt_tokens: 4, chat_template: "off", batch_groups: 8}}
reward: {{name: format, format: "(..)*"}}   # answers of an even number of letters: a coin that is thrown
rollout: {{samples: 2, max_new_tokens: {LONGEST}, max_sequences: 16, device: cpu}}
train: {{learning_rate: 1.0e-12, device: cpu}}
eval: {{every_steps: 0}}
checkpoint: {{at_end: false}}
""")


def measure(binaries, folder, mode, bound, steps, seed):
    run_dir = folder / f"{mode}-{bound}-{seed}"
    command = [str(binaries / "syncopate"), "run", str(folder / "deadlines.yaml"), "--quiet", f"run.dir={run_dir}",
               f"run.seed={seed}", f"run.steps={steps}", f"staleness.on_deadline={mode}",
               f"staleness.max_staleness={bound}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    summary = json.loads((run_dir / "summary.json").read_text())
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").open()]
    trained = [line for line in lines if line["kind"] == "step"]
    tokens, masked = summary["tokens"]["trained"], summary["tokens"]["masked"]
    dropped = summary["groups"]["dropped"]["past_deadline"]
    answers = sum(line["trained_samples"] for line in trained)
    return {"mode": mode, "max_staleness": bound, "seed": seed, "steps": summary["steps"],
            "seconds_per_step": round(statistics.mean(line["step_seconds"] for line in trained[5:]), 4),
            "trainer_idle": round(summary["idle"]["trainer"], 3),
            "trained_length_ratio": round(tokens / answers / drawn_length(), 3),
            "masked_token_ratio": round(masked / (tokens + masked), 3),
            "dropped_group_ratio": round(dropped / (dropped + summary["groups"]["trained"]), 3),
            "staleness_mean": round(summary["staleness"]["mean"], 3), "staleness_max": summary["staleness"]["max"],
            "violations": summary["staleness"]["violations"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, nargs="?", help="folder of syncopate and its daemons")
    parser.add_argument("--make", type=pathlib.Path, help="write model, data and configuration into this folder")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--bounds", default="1,2,4", help="values of staleness.max_staleness")
    parser.add_argument("--modes", default="stall,mask,drop")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each case, with seeds of their own")
    arguments = parser.parse_args()
    if arguments.make is not None:
        make(arguments.make.resolve())
        return
    if arguments.binaries is None:
        parser.error("BINARY_FOLDER or --make is needed")
    with tempfile.TemporaryDirectory() as folder:
        make(pathlib.Path(folder))
        for seed in range(arguments.repeat):
            for bound in arguments.bounds.split(","):
                for mode in arguments.modes.split(","):
                    print(json.dumps(measure(arguments.binaries.resolve(), pathlib.Path(folder), mode, int(bound),
                                             arguments.steps, seed)), flush=True)


if __name__ == "__main__":
    main()
