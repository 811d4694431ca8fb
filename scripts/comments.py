#!/usr/bin/env python3
"""Prints the comments of C++ sources by folder, for a reader who looks at their language alone.

usage: scripts/comments.py [--share] [FOLDER ...]     folders: those of the product if none is named

A line for each comment: file, line number, text; neighbouring lines of one comment stand together. --share prints, for each
folder, how many lines of its sources (.cc, .cu) are comments or end in one, and of its headers.
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["base", "ranks", "cuda", "text", "model", "synchronizer", "rollouter", "trainer", "services", "tools", "bench", "tests"]
# Strings are skipped, so that "http://x" is no comment. A raw string ends with its own delimiter.
TOKENS = re.compile(r'R"(?P<raw>[^()\s]*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)',
                    re.DOTALL)


def sources(folder):
    listed = subprocess.run(["git", "ls-files", "-z", "--", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name.endswith((".h", ".cc", ".cu", ".cuh"))]


def comments(text):
    """(line number, text of the comment's line) for each line that is or ends in a comment."""
    for match in TOKENS.finditer(text):
        comment = match["line"] or match["block"]
        if comment is None:
            continue
        first = text.count("\n", 0, match.start()) + 1
        for offset, line in enumerate(comment.split("\n")):
            yield first + offset, line.strip()


def show(path):
    last = None
    for number, line in comments(path.read_text()):
        if last is not None and number > last + 1:
            print()
        print(f"{path.relative_to(ROOT)}:{number}: {line}")
        last = number
    if last is not None:
        print()


def share(folder):
    counts = {"sources": [0, 0], "headers": [0, 0]}
    for path in sources(folder):
        text = path.read_text()
        count = counts["sources" if path.suffix in (".cc", ".cu") else "headers"]
        count[0] += len({number for number, _ in comments(text)})
        count[1] += text.count("\n")
    cells = [f"{kind} {100 * some / all_lines:5.1f} % of {all_lines}" for kind, (some, all_lines) in counts.items() if all_lines]
    print(f"{folder:14} {'   '.join(cells)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", action="store_true")
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    arguments = parser.parse_args()
    for folder in arguments.folders or FOLDERS:
        if arguments.share:
            share(folder)
        else:
            for path in sources(folder):
                show(path)


if __name__ == "__main__":
    sys.exit(main())
