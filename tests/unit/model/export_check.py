"""Holds an exported model directory against the one that the run began with, by the Python package safetensors: names,
shapes, dtypes, numbers and configuration. usage: export_check.py FROM EXPORTED DTYPE
Exits with 77 where the packages are not there."""

import json
import pathlib
import sys

try:
    import numpy
    import safetensors
except ImportError as missing:
    print(f"skipped: {missing}; scripts/bootstrap.sh --tests installs it")
    sys.exit(77)

STORED = {"float32": "F32", "bfloat16": "BF16"}


def as_float32(stored):
    data = stored["data"]
    if stored["dtype"] == "BF16":
        return (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return numpy.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[stored["dtype"]]).astype("<f4")


def as_bfloat16(values):
    """Rounded to nearest, ties to even."""
    bits = values.view("<u4").astype("<u8")
    return (bits + 0x7FFF + ((bits >> 16) & 1) >> 16).astype("<u2")


def tensors(folder):
    """name -> what safetensors says of it, over all files; an index must name each tensor's file."""
    index = folder / "model.safetensors.index.json"
    found, where = {}, {}
    for path in sorted(folder.glob("model*.safetensors")):
        for name, stored in safetensors.deserialize(path.read_bytes()):
            assert name not in found, f"{name} is stored twice"
            found[name], where[name] = stored, path.name
    if index.exists():
        written = json.loads(index.read_text())
        assert written["weight_map"] == where, "the index says another file"
    return found


def main(source, exported, dtype):
    before, after = json.loads((source / "config.json").read_text()), json.loads((exported / "config.json").read_text())
    said = {key: after.pop(key) for key in ("dtype", "torch_dtype") if key in after}
    assert said and set(said.values()) == {dtype}, f"config.json says {said}, the files are in {dtype}"
    assert after == {key: value for key, value in before.items() if key not in ("dtype", "torch_dtype")}
    theirs, ours = tensors(source), tensors(exported)
    needless = {name for name in theirs if name.endswith("rotary_emb.inv_freq")}
    if before.get("tie_word_embeddings"):
        needless.add("lm_head.weight")
    assert set(ours) == set(theirs) - needless, set(ours) ^ (set(theirs) - needless)
    for name, stored in ours.items():
        assert stored["dtype"] == STORED[dtype], f"{name} is stored as {stored['dtype']}"
        assert list(stored["shape"]) == list(theirs[name]["shape"]), name
        expected = as_float32(theirs[name])
        bits = as_bfloat16(expected) if dtype == "bfloat16" else expected.view("<u4")
        assert numpy.array_equal(numpy.frombuffer(stored["data"], bits.dtype), bits), f"{name} has other numbers"
    print(f"{len(ours)} tensors are as they should be")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3])
