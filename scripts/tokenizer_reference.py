#!/usr/bin/env python3
"""usage: scripts/tokenizer_reference.py golden                                  rewrites tests/unit/text/tokenizer/golden
       scripts/tokenizer_reference.py train FOLDER [--vocabulary N] TEXT...   FOLDER/<configuration>/tokenizer.json
       scripts/tokenizer_reference.py fuzz FOLDER COUNT SEED                  FOLDER/<configuration>/cases.jsonl

Tokenizers with the exact normalizer, pre-tokenizer, model and decoder settings of published models, trained on a little
text, and what the reference (PyPI tokenizers) says about strings: the ids, the text of the ids with and without special
tokens. `build/release/bin/tokenizer_compare FOLDER/*/` holds ours against it. Needs an environment of its own:

    python3 -m venv /tmp/reference && /tmp/reference/bin/pip install tokenizers==0.23.3
"""
import argparse
import json
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/unit/text/tokenizer/golden"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ENGLISH = """\
The trainer improves the policy and the rollouters generate with it at the same time. It's what we've measured: they don't
wait for each other, we'll see that soon, and I'd say you're right. "How many apples are there?" asked Anna; there were 12
of them on 3 tables, 4 on each, and 1,024 in the cellar (in 1999 there were 65,536!). Let x = 3.14 * (y + 2) / 7; if x > 10:
    return [x, y]  # a list
        else: print("none", x != y, a[0]->b, c::d, 100%)
THE UPPER CASE AND CamelCaseNames with_snake_case and http://example.org/path?query=1&other=two#part are tokens as well.
"""
FOREIGN = """\
Der schnelle Zug fährt über die Brücke, größer als je zuvor. Ça va très bien, où êtes-vous allé à Noël? El niño comió piña
mañana. Быстрая лиса прыгает через ленивую собаку. Το γρήγορο τρένο περνά. हिन्दी में लिखना सरल है। ภาษาไทยไม่มีช่องว่าง
中文分词没有空格，今天天气很好。日本語の文章はこちらです。한국어 문장을 적습니다. العربية من اليمين إلى اليسار. עברית
Việt Nam đẹp lắm; příliš žluťoučký kůň. 🙂 👍🏽 👩‍👩‍👧‍👦 ½ ² Ⅷ ① € – “quoted” … naïve ﬁne Å e\u0301
"""


def byte_level(regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated", False)


def with_begin(tokenizer, begin):
    number = tokenizer.token_to_id(begin)
    return processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1", special_tokens=[(begin, number)])


def trained(tokenizer, lines, size, special, plain=()):
    """Byte-level: trained, then given its added tokens."""
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=[],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    tokenizer.add_tokens([t if isinstance(t, AddedToken) else AddedToken(t, normalized=False) for t in plain])
    return tokenizer


CHAT = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOOLS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]


def qwen2(lines, size, pattern=QWEN2):
    t = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([split(pattern), byte_level()])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return trained(t, lines, size, CHAT, TOOLS)


def qwen35(lines, size):
    return qwen2(lines, size, QWEN35)


def llama3(lines, size):
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([split(LLAMA3), byte_level()])
    t = trained(t, lines, size, ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), with_begin(t, "<|begin_of_text|>")])
    return t


def gpt2(lines, size):
    t = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    t.pre_tokenizer = byte_level(regex=True)
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    # One token that is looked for in the normalized text, and two that take blanks with them.
    return trained(t, lines, size, ["<|endoftext|>"], [AddedToken("<pad>", normalized=True), AddedToken("<left>", lstrip=True, normalized=False),
                                                       AddedToken("<right>", rstrip=True, normalized=False)])


def o200k(lines, size):
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([split(O200K), byte_level()])
    return trained(t, lines, size, ["<|endoftext|>", "<|endofprompt|>", "<|start|>"])


def deepseek(lines, size):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([])
    t.pre_tokenizer = pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level()])
    return trained(t, lines, size, ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"], ["<｜User｜>", "<｜Assistant｜>"])


def digits(lines, size):
    """As DeepSeek's first coder: splits in a row, digits each alone, NFD for a decomposing normalizer."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFD()
    t.pre_tokenizer = pre_tokenizers.Sequence([split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
                                               pre_tokenizers.Digits(True), byte_level()])
    return trained(t, lines, size, ["<|EOT|>"])


def characters(lines, size, prefix):
    """Characters with byte fallback, trained within words, as SentencePiece's converters give them."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=prefix, split=True)
    special = ["<unk>", "<s>", "</s>"]
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, limit_alphabet=min(3000, size // 4), show_progress=False,
                          special_tokens=special + [f"<0x{i:02X}>" for i in range(256)]))
    return json.loads(t.to_str()), special


def llama2(lines, size):
    data, special = characters(lines, size, "always")
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                              {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    data["pre_tokenizer"] = None
    data["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                        {"type": "ByteFallback"}, {"type": "Fuse"},
                                                        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    data["added_tokens"] = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                             "special": True} for i, c in enumerate(special)]
    t = Tokenizer.from_str(json.dumps(data))
    t.post_processor = with_begin(t, "<s>")
    return t


def mistral(lines, size):
    data, special = characters(lines, size, "first")
    data["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                        {"type": "ByteFallback"}, {"type": "Fuse"},
                                                        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    data["added_tokens"] = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                             "special": True} for i, c in enumerate(special)]
    t = Tokenizer.from_str(json.dumps(data))
    t.add_tokens([AddedToken("[INST]", normalized=False), AddedToken("[/INST]", normalized=False)])
    t.post_processor = with_begin(t, "<s>")
    return t


def metaspace(lines, size):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    t.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, limit_alphabet=min(3000, size // 4), show_progress=False,
                                                     special_tokens=["<unk>", "</s>"]))
    return t


CONFIGURATIONS = [qwen2, qwen35, llama3, gpt2, o200k, deepseek, digits, llama2, mistral, metaspace]

BLANKS = (" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2003\u2009\u200a\u200b\u200d\u2028\u2029\u202f\u205f"
          "\u3000\ufeff")
NUMBERS = "0123456789" + "٠١٢٣٤٥٦٧٨٩" + "०१२३४" + "０１２３９" + "²³¹⅓½ⅧⅨ①⑩㉈" + "𝟘𝟙𝟚" + "一二三"
MARKS = "\u0301\u0308\u0327\u0323\u0307\u093c\u05bc\u0300\u0342\u0345\u0653\u1161\u11a8\u11a7\u0338"
EMOJI = ["👩‍👩‍👧‍👦", "👍🏽", "🇺🇳", "1️⃣", "🏴‍☠️", "❤️", "🫠", "🥹", "☃", "©️"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D", "’s", "'ſ", "'ſt",
                "'x", "''s", "' s", "'", "'r", "'v", "'l"]
SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”—…、。！？▁"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
SCRIPTS = [(0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF),
           (0xAC00, 0xD7A3), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x1E00, 0x1FFF), (0x2100, 0x218F), (0x2E80, 0x2FDF),
           (0xFB0, 0xFBC), (0x344, 0x344), (0x1D15E, 0x1D164), (0x2F800, 0x2FA1D), (0x1F600, 0x1F64F), (0x1F900, 0x1FAFF)]


def any_character(r):
    while True:
        p = r.random()
        c = r.randrange(0x110000) if p < .15 else r.randrange(0x3134F) if p < .5 else r.randrange(0x3000)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def any_of(r, alphabet, most):
    return "".join(r.choice(alphabet) for _ in range(r.randrange(1, most)))


def word(r):
    if r.random() < .4:
        return any_of(r, LETTERS, 12)
    first, last = r.choice(SCRIPTS)
    return "".join(chr(r.randrange(first, last + 1)) + (r.choice(MARKS) if r.random() < .25 else "") for _ in range(r.randrange(1, 8)))


def part(r, text, special):
    token = r.choice(special)
    cut = r.randrange(1, len(token) + 1)
    begin = r.randrange(len(text) - 300)
    return r.choice([
        lambda: any_of(r, BLANKS, 9),
        lambda: r.choice(" \t\n\r") * r.randrange(1, 40),
        lambda: any_of(r, NUMBERS, 12),
        lambda: str(r.randrange(10 ** r.randrange(1, 15))),
        lambda: r.choice(CONTRACTIONS),
        lambda: r.choice(EMOJI),
        lambda: any_of(r, SIGNS, 7),
        lambda: "".join(any_character(r) for _ in range(r.randrange(1, 10))),
        lambda: text[begin:begin + r.randrange(1, 200)],
        lambda: r.choice(["", " ", "\n\t"]) + token + r.choice(["", " ", "  \n"]),
        lambda: token[:cut] + r.choice(["", token, token[cut:], token.upper()]),
        lambda: r.choice(LETTERS) * r.randrange(1, 60),
        lambda: unicodedata.normalize(r.choice(["NFD", "NFKD", "NFC"]), word(r) + r.choice(["", "é", "가", "ﬁ"])),
        lambda: word(r) + r.choice([" ", "", "  ", "\n", " \n", " \n\n "]),
        lambda: word(r) + r.choice([" ", "", "  ", "\n", " \n", " \n\n "]),
    ])()


def string(r, text, special, longest):
    p = r.random()
    if p < .02:
        return ""
    if p < .10:
        return "".join(any_character(r) for _ in range(r.randrange(1, 60)))
    if p < .30:
        begin = r.randrange(len(text) - longest)
        return text[begin:begin + r.randrange(1, longest)]
    if p < .32:
        return r.choice(["a", " ", "\n", "ab", "0", "!", "é", "👍", "\t ", "a "]) * r.randrange(1, longest)
    return "".join(part(r, text, special) for _ in range(r.randrange(1, 14)))


def cases(tokenizer, count, seed, text, longest):
    """Strings with what the reference makes of them, and lists of ids that no text gives."""
    r = random.Random(seed)
    special = [t["content"] for t in json.loads(tokenizer.to_str())["added_tokens"]] or ["<|x|>"]
    for _ in range(count):
        given = string(r, text, special, longest)
        ids = tokenizer.encode(given, add_special_tokens=True).ids
        yield {"text": given, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
               "skipped": tokenizer.decode(ids, skip_special_tokens=True)}
    size = tokenizer.get_vocab_size()
    for _ in range(count // 3):
        ids = [r.randrange(size) if r.random() < .5 else r.randrange(min(size, 300)) for _ in range(r.randrange(1, 25))]
        yield {"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
               "skipped": tokenizer.decode(ids, skip_special_tokens=True)}


def save(folder, tokenizer):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n",
                                           encoding="utf-8")


def save_cases(folder, found):
    with open(folder / "cases.jsonl", "w", encoding="utf-8") as out:
        for case in found:
            out.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")


def golden():
    lines = (ENGLISH * 3 + FOREIGN).splitlines(keepends=True)
    for make in CONFIGURATIONS:
        tokenizer = make(lines, 550)
        save(GOLDEN / make.__name__, tokenizer)
        save_cases(GOLDEN / make.__name__, cases(tokenizer, 75, 1, (ENGLISH + FOREIGN) * 3, 120))


def train(folder, size, paths):
    text = "".join(pathlib.Path(path).read_text(encoding="utf-8", errors="ignore") for path in paths)
    lines = [text[i:i + 4000] for i in range(0, len(text), 4000)]
    for make in CONFIGURATIONS:
        save(pathlib.Path(folder) / make.__name__, make(lines, size))
    (pathlib.Path(folder) / "text.txt").write_text(text[:4_000_000] + FOREIGN * 1000, encoding="utf-8")


def fuzz(folder, count, seed):
    text = (pathlib.Path(folder) / "text.txt").read_text(encoding="utf-8")
    for path in sorted(pathlib.Path(folder).glob("*/tokenizer.json")):
        save_cases(path.parent, cases(Tokenizer.from_file(str(path)), count, seed, text, 1500))
        print(path.parent.name, count, "strings")


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("golden")
    training = commands.add_parser("train")
    training.add_argument("folder")
    training.add_argument("--vocabulary", type=int, default=8000)
    training.add_argument("text", nargs="+")
    fuzzing = commands.add_parser("fuzz")
    fuzzing.add_argument("folder")
    fuzzing.add_argument("count", type=int)
    fuzzing.add_argument("seed", type=int)
    options = parser.parse_args()
    if options.command == "golden":
        golden()
    elif options.command == "train":
        train(options.folder, options.vocabulary, options.text)
    else:
        fuzz(options.folder, options.count, options.seed)


main()
