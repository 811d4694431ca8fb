#!/usr/bin/env python3
"""usage: scripts/tiny_model.py FOLDER [--text FILE ...] [--vocabulary N] [--hidden N] [--layers N] [--context N] [--seed N]
                             [--tools]

Makes a Hugging Face model directory of random weights in seconds, to try things with: a Qwen3 of a few hundred thousand
parameters, a byte-level BPE tokenizer whose merges are learned from the given texts, and a chat template of the ChatML
kind; with --tools one that shows tools, and has them called as Qwen's models do. Needs Python alone. transformers and syncopate read it.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import struct

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Call a tool as <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' }}{{ message['content'] }}{{ '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
PIECE = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?[^\s\w]+|\s+(?!\S)|\s+")


def byte_alphabet():
    """GPT-2's: a printable character for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in shown}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(shown))
    return [table[byte] for byte in range(256)]


def learn_merges(texts, alphabet, count):
    words = collections.Counter()
    for text in texts:
        for piece in PIECE.findall(text):
            words[tuple(alphabet[byte] for byte in piece.encode())] += 1
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged = collections.Counter()
        for word, times in words.items():
            parts, at = [], 0
            while at < len(word):
                joins = word[at:at + 2] == best
                parts.append(best[0] + best[1] if joins else word[at])
                at += 2 if joins else 1
            merged[tuple(parts)] += times
        words = merged
    return merges


def tokenizer(texts, size):
    alphabet = byte_alphabet()
    merges = learn_merges(texts, alphabet, max(0, size - 256 - len(SPECIAL)))
    vocabulary = {token: i for i, token in enumerate(sorted(alphabet))}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    added = [{"id": len(vocabulary) + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, content in enumerate(SPECIAL)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocabulary, "merges": [list(pair) for pair in merges]}}


def tensors(shape):
    hidden, heads, groups, head = (shape[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads",
                                                          "head_dim"))
    yield "model.embed_tokens.weight", [shape["vocab_size"], hidden]
    for layer in range(shape["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", [hidden]
        yield at + "self_attn.q_proj.weight", [heads * head, hidden]
        yield at + "self_attn.k_proj.weight", [groups * head, hidden]
        yield at + "self_attn.v_proj.weight", [groups * head, hidden]
        yield at + "self_attn.q_norm.weight", [head]
        yield at + "self_attn.k_norm.weight", [head]
        yield at + "self_attn.o_proj.weight", [hidden, heads * head]
        yield at + "post_attention_layernorm.weight", [hidden]
        yield at + "mlp.gate_proj.weight", [shape["intermediate_size"], hidden]
        yield at + "mlp.up_proj.weight", [shape["intermediate_size"], hidden]
        yield at + "mlp.down_proj.weight", [hidden, shape["intermediate_size"]]
    yield "model.norm.weight", [hidden]


def write_weights(path, shape, seed):
    dice = random.Random(seed)
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, dims in tensors(shape):
        count = dims[0] * (dims[1] if len(dims) > 1 else 1)
        scale = 0.08 if "embed" in name else dims[-1] ** -0.5
        values = [1.0] * count if len(dims) == 1 else [dice.gauss(0, scale) for _ in range(count)]
        blob = struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": dims, "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, action="append", default=[], help="text to learn merges from")
    parser.add_argument("--vocabulary", type=int, default=320)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tools", action="store_true", help="a chat template with tools")
    arguments = parser.parse_args()

    words = tokenizer([path.read_text() for path in arguments.text], arguments.vocabulary)
    ids = {token["content"]: token["id"] for token in words["added_tokens"]}
    heads = max(1, arguments.hidden // 16)
    shape = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": max(ids.values()) + 1,
             "hidden_size": arguments.hidden, "intermediate_size": 3 * arguments.hidden,
             "num_hidden_layers": arguments.layers, "num_attention_heads": heads, "num_key_value_heads": heads,
             "head_dim": 16, "max_position_embeddings": arguments.context, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
             "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": True, "dtype": "float32",
             "bos_token_id": None, "eos_token_id": ids["<|im_end|>"]}
    arguments.folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": shape,
             "generation_config.json": {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]},
             "tokenizer.json": words,
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
                                       "chat_template": TOOL_TEMPLATE if arguments.tools else TEMPLATE}}
    for name, value in files.items():
        (arguments.folder / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")
    write_weights(arguments.folder / "model.safetensors", shape, arguments.seed)


if __name__ == "__main__":
    main()
