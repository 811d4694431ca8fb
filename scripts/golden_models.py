#!/usr/bin/env python3
"""Tiny random models of every family, and what transformers computes with them, for tests/unit/model/golden_test.cc.

Writes below tests/golden/models/<case>/:
  model/          config.json, generation_config.json and weights, as save_pretrained writes them (where the case is
                  about an older spelling, config.json is put into it and read back by transformers first)
  golden.json     prompts, and the greedy continuations of each
  golden.safetensors
                  logits of each prompt ("logits.<i>": [tokens, vocabulary]) and the gradients of one loss: the mean
                  negative log-probability of each next token, over all prompts ("gradient.<parameter>")

Everything in float32 on the CPU, eager attention. Run it in an environment of its own, which scripts/bootstrap.sh --long
makes:
  build/golden-venv/bin/python scripts/golden_models.py

With --check DIR it loads DIR with transformers instead and compares it with the case that --case names: exit code 0 if
logits agree within --tolerance of their largest element.
"""
import argparse
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "models"
VOCABULARY = 72
NEW_TOKENS = 8
PROMPTS = [[3, 17, 42, 5, 60, 7, 11], [90, 1, 2, 33], [8] * 3 + list(range(20, 40))]

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


def shape(**changes):
    values = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2,
                  rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    values.update(changes)
    return values


def legacy(config):
    """rope_theta and rope_scaling, torch_dtype: what transformers 4 wrote."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"rope_type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype")


def older(config):
    """As before transformers 4.43: the rope's kind is called `type`."""
    legacy(config)
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")


def without_defaults(config):
    """Keys that may be absent or null."""
    legacy(config)
    config["head_dim"] = None
    for key in ("num_key_value_heads", "tie_word_embeddings", "rope_theta", "attention_bias", "mlp_bias"):
        config.pop(key, None)


# name: (configuration, dtype of the files, shards, change of config.json)
CASES = {
    "llama3-tied": (transformers.LlamaConfig(**shape(tie_word_embeddings=True, rope_parameters=LLAMA3)),
                    torch.float32, 1, None),
    "llama-biases": (transformers.LlamaConfig(**shape(attention_bias=True, mlp_bias=True, num_key_value_heads=1,
                                                      rope_parameters=LLAMA3)), torch.float32, 3, legacy),
    "llama-plain": (transformers.LlamaConfig(**shape(num_key_value_heads=4)), torch.float16, 1, without_defaults),
    "llama-linear": (transformers.LlamaConfig(**shape(rope_parameters=LINEAR, head_dim=16)), torch.bfloat16, 1, older),
    "qwen2-tied": (transformers.Qwen2Config(**shape(tie_word_embeddings=True, eos_token_id=[71, 70])), torch.bfloat16, 3,
                   legacy),
    "qwen2-full": (transformers.Qwen2Config(**shape(hidden_size=36, intermediate_size=37, num_attention_heads=6,
                                                    num_key_value_heads=6, vocab_size=71)), torch.float32, 1, None),
    "qwen3-tied": (transformers.Qwen3Config(**shape(tie_word_embeddings=True, head_dim=24)), torch.float32, 1, None),
    "qwen3-yarn": (transformers.Qwen3Config(**shape(head_dim=16, attention_bias=True, rope_parameters=YARN)),
                   torch.bfloat16, 3, legacy),
    "qwen3-yarn-factors": (transformers.Qwen3Config(**shape(
        head_dim=16, rope_parameters=YARN | {"attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 0.5,
                                             "truncate": False})), torch.float32, 1, None),
    "mistral": (transformers.MistralConfig(**shape(sliding_window=None, head_dim=8)), torch.float32, 3, None),
    "mistral-window": (transformers.MistralConfig(**shape(sliding_window=48, num_key_value_heads=4)), torch.float16, 1,
                       legacy),
    "mistral-slides": (transformers.MistralConfig(**shape(sliding_window=8)), torch.float32, 1, None),
    "qwen3-layer-types": (transformers.Qwen3Config(**shape(
        head_dim=16, num_hidden_layers=3, use_sliding_window=True, sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"])), torch.float32, 1, None),
    "qwen3-moe": (transformers.Qwen3MoeConfig(**shape(
        head_dim=8, num_hidden_layers=3, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12,
        norm_topk_prob=True, mlp_only_layers=[1])), torch.float32, 1, None),
    "qwen3-moe-steps": (transformers.Qwen3MoeConfig(**shape(
        head_dim=16, num_hidden_layers=3, num_experts=4, num_experts_per_tok=3, moe_intermediate_size=8,
        norm_topk_prob=False, decoder_sparse_step=2, tie_word_embeddings=True)), torch.bfloat16, 3, None),
}


def randomise(model):
    """Biases and norms that are not all 0 and 1, so that a test sees them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                base = 0.0 if name.endswith(".bias") else 1.0
                parameter.copy_(base + 0.3 * torch.randn_like(parameter))


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                              attn_implementation="eager")
    return model.eval()


def prompts_of(model):
    return [[token % model.config.vocab_size for token in prompt] for prompt in PROMPTS]


def logits_of(model, prompts):
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits[0].float().contiguous() for prompt in prompts]


def gradients_of(model, prompts):
    total, tokens = 0, 0
    for prompt in prompts:
        ids = torch.tensor([prompt])
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
        total = total - logprobs.gather(-1, ids[0, 1:, None]).sum()
        tokens += len(prompt) - 1
    (total / tokens).backward()
    return {published: gradient for name, parameter in model.named_parameters()
            for published, gradient in split_experts(name, parameter.grad)}


def split_experts(name, tensor):
    """transformers holds all experts of a layer as one tensor; published files have one of each."""
    prefix, _, kind = name.rpartition(".experts.")
    for expert in range(tensor.shape[0] if prefix else 0):
        if kind == "down_proj":
            yield f"{prefix}.experts.{expert}.down_proj.weight", tensor[expert]
        else:
            gate, up = tensor[expert].chunk(2)
            yield f"{prefix}.experts.{expert}.gate_proj.weight", gate
            yield f"{prefix}.experts.{expert}.up_proj.weight", up
    if not prefix:
        yield name, tensor


def greedy_of(model, prompts):
    """None if two tokens were nearly tied somewhere, as the tie could fall the other way on another machine."""
    continuations = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False,
                              pad_token_id=0)
        continuations.append(made[0, len(prompt):].tolist())
        logits = logits_of(model, [made[0].tolist()])[0][len(prompt) - 1:-1]
        best = logits.topk(2).values
        if (best[:, 0] - best[:, 1]).min() < 1e-3 * logits.abs().max():
            return None
    return continuations


def save(model, folder, shards):
    """Returns the names of the files, of which there are `shards`."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, max_shard_size=size)
        files = sorted(p.name for p in folder.glob("*.safetensors"))
        if len(files) >= shards:
            assert len(files) == shards, files
            return files
        size = size * 9 // 10


def write_case(name, config, dtype, shards, respell, seed=0):
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(sum(map(ord, name)) + seed)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
    randomise(model)
    model = model.to(dtype)
    files = save(model, folder / "model", shards)
    if respell is not None:
        path = folder / "model" / "config.json"
        values = json.loads(path.read_text())
        respell(values)
        path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    model = load(folder / "model")
    prompts = prompts_of(model)
    greedy = greedy_of(model, prompts)
    if greedy is None:
        return write_case(name, config, dtype, shards, respell, seed + 1)
    tensors = {f"logits.{i}": logits for i, logits in enumerate(logits_of(model, prompts))}
    tensors |= {f"gradient.{key}": value.contiguous() for key, value in gradients_of(model, prompts).items()}
    save_file(tensors, folder / "golden.safetensors")
    (folder / "golden.json").write_text(json.dumps({"prompts": prompts, "greedy": greedy}) + "\n")
    print(name, files, greedy[0])


def check(folder, name, tolerance):
    model = load(folder)
    golden = load_file(ROOT / name / "golden.safetensors")
    worst = 0.0
    for i, logits in enumerate(logits_of(model, prompts_of(model))):
        expected = golden[f"logits.{i}"]
        worst = max(worst, ((logits - expected).abs().max() / expected.abs().max()).item())
    print(f"{name}: logits differ by {worst:.2e} of their largest element")
    return 0 if worst <= tolerance else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="DIR", help="a model directory to compare instead")
    parser.add_argument("--case", choices=CASES, help="what it is compared with")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.check:
        return check(arguments.check, arguments.case, arguments.tolerance)
    for name, case in CASES.items():
        write_case(name, *case)
    size = sum(p.stat().st_size for p in ROOT.rglob("*") if p.is_file())
    print(f"{size / 1e6:.2f} MB in all")
    return 0 if size <= 3e6 else 1


if __name__ == "__main__":
    sys.exit(main())
