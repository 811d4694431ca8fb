#!/usr/bin/env python3
"""LoRA adapters on models of scripts/golden_models.py, and what peft computes with them, for tests/unit/model/.

Writes below tests/golden/adapters/<case>/:
  adapter_config.json, adapter_model.safetensors
                  as peft's save_pretrained writes them
  golden.json     the base (a case of tests/golden/models), prompts, and the greedy continuations of each
  golden.safetensors
                  logits of each prompt ("logits.<i>": [tokens, vocabulary]) and the adapters' gradients of the loss of
                  scripts/golden_models.py ("gradient.<tensor as in adapter_model.safetensors>")

Everything in float32 on the CPU. Run it in the environment that scripts/bootstrap.sh --long makes:
  build/golden-venv/bin/python scripts/golden_adapters.py

With --check DIR it loads DIR, a directory of adapters, with peft instead, on the base of the case that --case names, and
compares it with that case: exit code 0 if logits agree within --tolerance of their largest element.
"""
import argparse
import json
import pathlib
import shutil
import sys

import peft
import torch
from safetensors.torch import load_file, save_file

import golden_models

ROOT = golden_models.ROOT.parent / "adapters"

# name: (base, LoraConfig)
CASES = {
    "llama-all": ("llama-biases", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "qwen2-rslora": ("qwen2-full", dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj"])),
    "qwen3-pattern": ("qwen3-tied", dict(r=2, lora_alpha=2,
                                         target_modules=r"model\.layers\.\d+\.(self_attn\.[ko]|mlp\.(up|down))_proj")),
    "mistral-all": ("mistral", dict(r=8, lora_alpha=4, target_modules="all-linear")),
}


def base_of(name):
    return golden_models.load(golden_models.ROOT / CASES[name][0] / "model")


def write_case(name, seed=0):
    base, options = CASES[name]
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(sum(map(ord, name)) + seed)
    model = peft.get_peft_model(base_of(name), peft.LoraConfig(task_type="CAUSAL_LM", **options))
    model.base_model.model.config._name_or_path = base
    model.peft_config["default"].base_model_name_or_path = base
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # A and B; B would begin as 0
                parameter.copy_(0.3 * torch.randn_like(parameter))
    model.eval()
    model.save_pretrained(folder)
    for other in folder.iterdir():
        if other.name not in ("adapter_config.json", "adapter_model.safetensors"):
            other.unlink()
    prompts = golden_models.prompts_of(model)
    greedy = golden_models.greedy_of(model, prompts)
    if greedy is None:
        return write_case(name, seed + 1)
    tensors = {f"logits.{i}": logits for i, logits in enumerate(golden_models.logits_of(model, prompts))}
    total, tokens = 0, 0
    for prompt in prompts:
        ids = torch.tensor([prompt])
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
        total = total - logprobs.gather(-1, ids[0, 1:, None]).sum()
        tokens += len(prompt) - 1
    (total / tokens).backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.grad is not None:
            tensors["gradient." + parameter_name.replace(".default", "")] = parameter.grad.contiguous()
    saved = load_file(folder / "adapter_model.safetensors")
    assert {f"gradient.{key}" for key in saved} == {key for key in tensors if key.startswith("gradient.")}
    save_file(tensors, folder / "golden.safetensors")
    (folder / "golden.json").write_text(json.dumps({"base": base, "prompts": prompts, "greedy": greedy}) + "\n")
    print(name, len(saved), "tensors", greedy[0])


def check(folder, name, tolerance):
    model = peft.PeftModel.from_pretrained(base_of(name), folder).eval()
    golden = load_file(ROOT / name / "golden.safetensors")
    worst = 0.0
    for i, logits in enumerate(golden_models.logits_of(model, golden_models.prompts_of(model))):
        expected = golden[f"logits.{i}"]
        worst = max(worst, ((logits - expected).abs().max() / expected.abs().max()).item())
    print(f"{name}: logits differ by {worst:.2e} of their largest element")
    return 0 if worst <= tolerance else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="DIR", help="a directory of adapters to compare instead")
    parser.add_argument("--case", choices=CASES, help="what it is compared with")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.check:
        return check(arguments.check, arguments.case, arguments.tolerance)
    for name in CASES:
        write_case(name)
    size = sum(p.stat().st_size for p in ROOT.rglob("*") if p.is_file())
    print(f"{size / 1e6:.2f} MB in all")
    return 0 if size <= 1e6 else 1


if __name__ == "__main__":
    sys.exit(main())
