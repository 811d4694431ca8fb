#!/usr/bin/env python3
"""usage: scripts/unicode_tables.py > text/tokenizer/unicode_tables.h

Writes the Unicode tables of text/tokenizer. They are asked of the reference, PyPI tokenizers, code point by code point:
its regular expressions are of Unicode 16 and its normal forms of Unicode 9, and no library or Python has that pair.
Needs, in an environment of its own:

    python3 -m venv /tmp/reference && /tmp/reference/bin/pip install tokenizers==0.23.3

Combining classes come from this Python's unicodedata: a class never changes once it is given (Unicode's stability
policy), and only characters that the reference itself puts into order are listed.
"""
import sys
import unicodedata

from tokenizers import Regex, __version__, normalizers, pre_tokenizers

PINNED = "0.23.3"
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
HANGUL_SYLLABLES = range(0xAC00, 0xD7A4)  # composed by arithmetic, not by table
NFC = normalizers.NFC().normalize_str
NFD = normalizers.NFD().normalize_str


def members(pattern):
    """The code points that a pattern of one character matches."""
    removing = pre_tokenizers.Split(Regex(pattern), "removed", False)
    left = set()
    for i in range(0, len(POINTS), 4096):
        for piece, _ in removing.pre_tokenize_str("".join(map(chr, POINTS[i:i + 4096]))):
            left.update(piece)
    return [c for c in POINTS if chr(c) not in left]


def ranges(points):
    """[(first, last, value)] of [(point, value)] in order."""
    out = []
    for c, value in points:
        if out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        else:
            out.append([c, c, value])
    return out


def combining():
    """(point, class) of the marks that the reference puts into order."""
    low, high = "\u0334", "\u0345"  # classes 1 and 240
    out = []
    for c in POINTS:
        mark = chr(c)
        if NFD(mark) == mark and (NFD("a" + high + mark) != "a" + high + mark or NFD("a" + mark + low) != "a" + mark + low):
            out.append((c, unicodedata.combining(mark)))
        elif mark in (low, high):
            out.append((c, unicodedata.combining(mark)))
    assert all(0 < value < 256 for _, value in out)
    return out


def decompositions():
    return [(c, NFD(chr(c))) for c in POINTS if c not in HANGUL_SYLLABLES and NFD(chr(c)) != chr(c)]


def compositions(decomposed):
    """(first, second, composed) of the characters that NFC puts together."""
    out = []
    for c, parts in decomposed:
        if NFC(chr(c)) != chr(c):
            continue
        first = NFC(parts[:-1])
        assert len(first) == 1 and NFC(first + parts[-1]) == chr(c), hex(c)
        out.append((ord(first), ord(parts[-1]), c))
    return sorted(out)


def table(declaration, rows, across):
    print(f"inline constexpr {declaration}[] = {{")
    for i in range(0, len(rows), across):
        print("    " + " ".join(row + "," for row in rows[i:i + across]))
    print("};")


HEAD = """\
// Made by scripts/unicode_tables.py from tokenizers {version}. Do not edit.
#pragma once

#include <cstdint>

namespace syncopate::text::tokenizer {{

struct CodePointRange {{
  char32_t first, last;
}};
struct CategoryRange {{
  char32_t first, last;
  uint8_t category;  // of kCategoryNames
}};
struct CombiningRange {{
  char32_t first, last;
  uint8_t combining_class;
}};
struct Decomposition {{
  char32_t code_point;
  uint16_t begin, length;  // of kDecompositionParts
}};
struct Composition {{
  char32_t first, second, composed;
}};
"""


def main():
    if __version__ != PINNED:
        sys.exit(f"the tables are those of tokenizers {PINNED}, and this is {__version__}")
    print(HEAD.format(version=__version__))
    spaces = ranges([(c, 0) for c in members(r"\s")])
    table("CodePointRange kSpaceRanges", [f"{{0x{a:x}, 0x{b:x}}}" for a, b, _ in spaces], 6)
    names = ", ".join(f'"{name}"' for name in CATEGORIES)
    print(f"inline constexpr char kCategoryNames[][3] = {{{names}}};")
    categories = sorted((c, k) for k, name in enumerate(CATEGORIES) for c in members(rf"\p{{{name}}}"))
    table("CategoryRange kCategoryRanges", [f"{{0x{a:x}, 0x{b:x}, {k}}}" for a, b, k in ranges(categories)], 6)
    table("CombiningRange kCombiningRanges", [f"{{0x{a:x}, 0x{b:x}, {k}}}" for a, b, k in ranges(combining())], 6)
    decomposed = decompositions()
    flat, rows = [], []
    for c, parts in decomposed:
        rows.append(f"{{0x{c:x}, {len(flat)}, {len(parts)}}}")
        flat += [f"0x{ord(p):x}" for p in parts]
    table("Decomposition kDecompositions", rows, 6)
    table("char32_t kDecompositionParts", flat, 14)
    table("Composition kCompositions", [f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}" for a, b, c in compositions(decomposed)], 5)
    print("\n}  // namespace syncopate::text::tokenizer")


main()
