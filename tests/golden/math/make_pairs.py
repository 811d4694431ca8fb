"""Writes pairs.tsv: two answers a line and whether math-verify calls them equal.

usage: make_pairs.py > pairs.tsv        with math-verify 0.9.0 (pip install math-verify==0.9.0)
The pairs are shapes of answers that mathematical data sets have, and what policies write for them: the same in another
form, near misses, other kinds.
"""
import random

from math_verify import parse, verify

SHAPES = [
    ["1/2", "\\frac12", "\\frac{1}{2}", "\\dfrac{1}{2}", "0.5", ".5", "\\frac{2}{4}", "2/4", "50\\%", "1\\frac{1}{2}",
     "-\\frac{1}{2}", "\\frac{-1}{2}", "0.50", "2^{-1}", "\\frac{1}{3}"],
    ["1000", "1,000", "1{,}000", "10^3", "10^{3}", "1000.0", "1\\,000", "1000.", "100", "10000", "999", "1000\\text{ cm}",
     "\\$1000", "x=1000", "1\\times10^3"],
    ["\\sqrt{8}", "2\\sqrt{2}", "2\\sqrt2", "\\sqrt{2}\\cdot2", "\\sqrt{2}", "8^{1/2}", "\\frac{4}{\\sqrt{2}}", "2.83",
     "\\sqrt{9}", "-2\\sqrt{2}", "\\sqrt[3]{8}"],
    ["1+\\sqrt{2}", "\\sqrt{2}+1", "\\frac{1}{\\sqrt{2}-1}", "1-\\sqrt{2}", "\\sqrt{2}-1", "\\frac{2+2\\sqrt{2}}{2}",
     "(1+\\sqrt{2})", "1+\\sqrt{3}"],
    ["2\\pi", "\\pi\\cdot2", "\\frac{4\\pi}{2}", "\\pi", "6.28", "2\\cdot\\pi", "\\frac{\\pi}{2}", "2\\pi^2", "4\\pi",
     "-2\\pi", "2 \\pi"],
    ["(1,2)", "(2,1)", "(1, 2)", "\\left(1,2\\right)", "[1,2]", "(1,2,3)", "(1,3)", "\\left(\\frac{2}{2}, 2\\right)",
     "(1.0,2)", "(-1,2)", "5"],
    ["\\{1,2,3\\}", "\\{3,2,1\\}", "1,2,3", "3, 1, 2", "\\left\\{1,2,3\\right\\}", "\\{1,2\\}", "1, 2", "\\{1,2,4\\}",
     "1,2,3,4", "1, 2, \\text{ and } 3", "7"],
    ["(-\\infty,2]", "(-\\infty, 2]", "(-\\infty,2)", "(-\\infty,3]", "[2,\\infty)", "(2,\\infty)", "[2, \\infty)",
     "x\\in[2,\\infty)", "[-2,\\infty)", "(0,2]"],
    ["-3", "-3.0", "3", "x=-3", "-\\frac{9}{3}", "-3\\text{ degrees}", "-3^\\circ", "- 3", "-33", "-0.3", "1-4"],
    ["7", "07", "7.0", "7^1", "7.", "$7$", "70", "77", "14/2", "\\frac{14}{2}", "6+1", "7\\%", "0.07",
     "7 \\text{ apples}"],
    ["90^\\circ", "90", "90^{\\circ}", "90\\text{ degrees}", "45^\\circ", "90.5", "\\angle 90"],
    ["\\frac{3}{4}", "3/4", "0.75", "75\\%", "\\frac{6}{8}", "3:4", "\\frac{4}{3}", "0.7", "0.750", "\\dfrac34",
     "\\frac34", "\\tfrac{3}{4}"],
    ["2^{10}", "1024", "4^5", "1{,}024", "1024.00", "2^{9}", "32^2", "1025", "2\\cdot512"],
    ["\\frac{\\sqrt{3}}{2}", "\\frac{1}{2}\\sqrt{3}", "\\sqrt{\\frac{3}{4}}", "\\frac{3}{2\\sqrt{3}}", "\\sqrt{0.75}",
     "0.866", "\\frac{\\sqrt{3}}{3}", "\\frac{\\sqrt3}2"],
    ["A", "\\text{A}", "B", "\\text{(A)}", "\\textbf{A}"],
    ["x^2+1", "1+x^2", "x^2+2", "x^2 + 1"],
    ["1234567", "1,234,567", "1234568", "1{,}234{,}567", "123456.7"],
    ["12.5", "\\frac{25}{2}", "12\\frac{1}{2}", "12.50", "12.05", "12\\frac12", "125"],
    ["0", "0.0", "-0", "\\frac{0}{5}", "1", "0\\%", "00"],
    ["5\\text{ cm}", "5", "5\\text{ cm}^2", "5\\mathrm{~cm}", "5cm", "6\\text{ cm}"],
]


def numbers(draw):
    a, b, k = draw.randint(1, 60), draw.randint(2, 40), draw.randint(2, 9)
    forms = [f"\\frac{{{a}}}{{{b}}}", f"{a}/{b}", f"\\frac{{{a * k}}}{{{b * k}}}", f"\\frac{{{a + 1}}}{{{b}}}",
             f"-\\frac{{{a}}}{{{b}}}", f"{a}\\cdot\\frac{{1}}{{{b}}}", f"\\frac{{{a}\\sqrt{{{k}}}}}{{{b}}}",
             f"{a}+\\sqrt{{{b}}}", f"\\sqrt{{{b}}}+{a}", f"\\sqrt{{{k * k * b}}}", f"{k}\\sqrt{{{b}}}", f"{a}.{b}",
             f"({a},{b})", f"({b}, {a})", f"\\{{{a},{b}\\}}", f"{b},{a}", f"{a}\\pi", f"\\frac{{{a * k}\\pi}}{{{k}}}",
             f"{a}^2", str(a * a), f"{a}-{b}", str(a - b)]
    return draw.sample(forms, 2)


def main():
    draw = random.Random(15)
    pairs = []
    for shape in SHAPES:
        for i, expected in enumerate(shape[:4]):
            pairs += [(expected, given) for given in shape if given != expected][:9 if i else 20]
    while len(pairs) < 700:
        pairs.append(tuple(numbers(draw)))
    for expected, given in dict.fromkeys(pairs):
        both = [parse(f"\\boxed{{{one}}}") for one in (expected, given)]
        # What math-verify cannot read it compares as text; that is no verdict.
        if all(any(not isinstance(form, str) for form in one) for one in both):
            print(expected, given, "yes" if verify(*both) else "no", sep="\t")


main()
