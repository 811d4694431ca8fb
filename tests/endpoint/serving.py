"""Starts `syncopate serve` on model directories that tests make."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 60
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'()*+,-./:;<=>?@[]^_`{|}~"


class Server:
    """A server of `folder`; use it as a context."""

    def __init__(self, binaries, folder, *arguments):
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", str(binaries / "syncopate"), "serve", str(folder), "--listen", "127.0.0.1:0",
             "--threads", "1", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("serving "):
            raise RuntimeError(line + self.process.stderr.read())
        _, self.name, _, self.url = line.split()
        self.port = int(self.url.rsplit(":", 1)[1].split("/")[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.returncode


def scratch(test):
    folder = pathlib.Path(tempfile.mkdtemp())
    test.addClassCleanup(shutil.rmtree, folder)
    return folder


def tiny_model(folder, *arguments):
    """A model of random weights with a chat template."""
    subprocess.run([sys.executable, str(SOURCE / "scripts/tiny_model.py"), str(folder), "--text", str(SOURCE / "README.md"),
                    *arguments], check=True)
    return folder


def golden_model(name, folder):
    """A golden model with a tokenizer in which each token is one letter; returns its golden prompts and answers as text."""
    golden = SOURCE / "tests/golden/models" / name
    shutil.copytree(golden / "model", folder)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    assert size <= len(LETTERS), size
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {letter: i for i, letter in enumerate(LETTERS[:size])}, "merges": []}}))
    answers = json.loads((golden / "golden.json").read_text())
    text = lambda ids: "".join(LETTERS[i] for i in ids)
    return [text(ids) for ids in answers["prompts"]], [text(ids) for ids in answers["greedy"]]
