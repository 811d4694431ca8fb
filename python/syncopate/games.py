"""The environments that are built in, in Python: `guess` and `calculator`. They say what those of the rollouter say, byte
for byte, and are examples of environments.

    syncopate-worker -m syncopate.games
"""
import math
import string
from typing import NamedTuple, Optional

from .registry import Turn, environment

_SPACE = b" \t\n\v\f\r"
_DIGITS = string.digits.encode()
_WORD = (string.ascii_letters + string.digits).encode()
_MOST_EXPRESSION = 1024  # bytes
_MOST_DEPTH = 64  # open parentheses and signs
_MOST_DECIMALS = 12  # behind the point of a result


@environment("guess")
class Guess:
    """A number from 1 to 32 is to be found. A right guess gives 1, every other one costs 0.1."""
    NUMBERS = 32

    async def reset(self, task, seed):
        truth = _truth(task)
        if truth is None:
            self.number = 1 + _philox(seed) % self.NUMBERS
        else:
            self.number = self._read(truth)
            if not self.number:
                raise ValueError(f"the row's answer is no number from 1 to {self.NUMBERS}: {truth[:100]}")

    async def step(self, action):
        guess = self._read(action.text)
        if guess == self.number:
            return Turn("right", 1.0, done=True)
        if not guess:
            return Turn(f"no number from 1 to {self.NUMBERS}", -0.1)
        return Turn("higher" if guess < self.number else "lower", -0.1)

    def _read(self, text: str) -> int:
        """The number that a text ends with; 0 if that is no number of the game."""
        last = final_number(text)
        if last is None or "." in last:
            return 0
        return int(last) if 1 <= int(last) <= self.NUMBERS else 0


@environment("calculator")
class Calculator:
    """An action whose last line is "calc: <expression>" gets the expression's value. Every other action is the answer, and
    gives 1 if its last number is the row's right one, else 0."""

    async def reset(self, task, seed):
        truth = _truth(task)
        self.truth = None if truth is None else final_number(truth)
        if self.truth is None:
            raise ValueError("the row has no right number to compare with; data.answer_field names its field")

    async def step(self, action):
        last = action.text.encode("utf-8", "replace").strip(_SPACE).rpartition(b"\n")[2].lstrip(_SPACE)
        if last.startswith(b"calc:"):
            try:
                return Turn(calculate(last[len(b"calc:"):]))
            except BadExpression as error:
                return Turn(f"error: {error}")
        given = final_number(action.text)
        right = given is not None and _same_number(self.truth, given)
        return Turn("right" if right else "wrong", 1.0 if right else 0.0, done=True)


# -- numbers


def _truth(task: dict) -> Optional[str]:
    """The row's right answer as text; None if it has none, or a list or an object."""
    truth = task.get("ground_truth")
    if truth is None or isinstance(truth, (dict, list)):
        return None
    if isinstance(truth, bool):
        return "true" if truth else "false"
    return truth if isinstance(truth, str) else repr(truth)


def _philox(key: int) -> int:
    """The first word of Philox4x32-10 at counter 0 (Salmon et al., SC 2011)."""
    counter = [0, 0, 0, 0]
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(right >> 32) ^ counter[1] ^ low, right & 0xFFFFFFFF, (left >> 32) ^ counter[3] ^ high,
                   left & 0xFFFFFFFF]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return counter[0]


def final_number(text: str) -> Optional[str]:
    """The number behind the last "####", or else the last number of the text, as "-1234.5"; None if there is none. Commas
    between digits and a dollar sign before them are ignored. A minus counts only if no word or number stands before it."""
    data = text.encode("utf-8", "replace")
    mark = data.rfind(b"####")
    if mark >= 0:
        data = data[mark + 4:]
    found, at = None, 0
    while at < len(data):
        if data[at] not in _DIGITS:
            at += 1
            continue
        before, number = at, ""
        if before > 0 and data[before - 1] == ord("."):  # .5
            number, before = "0.", before - 1
        if before > 0 and data[before - 1] == ord("$"):
            before -= 1
        minus = before > 0 and data[before - 1] == ord("-") and (
            before == 1 or data[before - 2] not in _WORD + b").")
        point = bool(number)
        while at < len(data):
            more = at + 1 < len(data) and data[at + 1] in _DIGITS
            if data[at] in _DIGITS:
                number += chr(data[at])
            elif data[at] == ord(".") and not point and more:
                point = True
                number += "."
            elif data[at] != ord(",") or not more:
                break
            at += 1
        found = "-" + number if minus else number
        if mark >= 0:
            return found
    return found


class BadExpression(ValueError):
    pass


class _Ratio(NamedTuple):
    """A fraction in lowest terms with a positive denominator. Its operations fail where those of 128 bits would."""
    above: int
    below: int

    @classmethod
    def make(cls, above: int, below: int) -> "_Ratio":
        common = math.gcd(above, below) * (-1 if below < 0 else 1)
        return cls(above // common, below // common)

    def times(self, other: "_Ratio") -> "_Ratio":
        return self.make(_fit(self.above * other.above), _fit(self.below * other.below))

    def plus(self, other: "_Ratio") -> "_Ratio":
        left, right = _fit(self.above * other.below), _fit(other.above * self.below)
        return self.make(_fit(left + right), _fit(self.below * other.below))


def _fit(value: int) -> int:
    if abs(value) >= 1 << 127:
        raise BadExpression("the numbers are too large")
    return value


def _read_digits(data: bytes, at: int):
    """A decimal number at `at`, and where it ends; None without a digit."""
    value, unit, point, digits = _Ratio(0, 1), _Ratio(1, 1), False, False
    while at < len(data) and (data[at] in _DIGITS or (data[at] == ord(".") and not point)):
        if data[at] == ord("."):
            point = True
        else:
            digits = True
            if point:
                unit = unit.times(_Ratio(10, 1))
            value = value.times(_Ratio(10, 1)).plus(_Ratio(data[at] - ord("0"), 1))
        at += 1
    return (value.times(_Ratio(unit.below, unit.above)) if digits else None), at


def _same_number(a: str, b: str) -> bool:
    def read(number):
        value, _ = _read_digits(number.lstrip("-").encode(), 0)
        return value.times(_Ratio(-1, 1)) if number.startswith("-") else value
    try:
        return read(a) == read(b)
    except BadExpression:
        return False


class _Reader:
    """sum = product {("+" | "-") product};  product = factor {("*" | "/") factor};
    factor = "-" factor | "(" sum ")" | number"""

    def __init__(self, data: bytes):
        self._data, self._at = data, 0

    def read(self) -> _Ratio:
        value = self._sum(0)
        if self._peek():
            raise self._cannot_read()
        return value

    def _peek(self) -> bytes:
        while self._at < len(self._data) and self._data[self._at] in _SPACE:
            self._at += 1
        return self._data[self._at:self._at + 1]

    def _cannot_read(self) -> BadExpression:
        return BadExpression(f"cannot read '{self._data[self._at:self._at + 20].decode('utf-8', 'replace')}'")

    def _sum(self, depth: int) -> _Ratio:
        total = self._product(depth)
        while self._peek() in (b"+", b"-"):
            sign = -1 if self._peek() == b"-" else 1
            self._at += 1
            total = total.plus(self._product(depth).times(_Ratio(sign, 1)))
        return total

    def _product(self, depth: int) -> _Ratio:
        product = self._factor(depth)
        while self._peek() in (b"*", b"/"):
            quotient = self._peek() == b"/"
            self._at += 1
            factor = self._factor(depth)
            if quotient and not factor.above:
                raise BadExpression("division by zero")
            product = product.times(_Ratio.make(factor.below, factor.above) if quotient else factor)
        return product

    def _factor(self, depth: int) -> _Ratio:
        if depth > _MOST_DEPTH:
            raise BadExpression("too many parentheses")
        if self._peek() == b"-":
            self._at += 1
            return self._factor(depth + 1).times(_Ratio(-1, 1))
        if self._peek() != b"(":
            return self._number()
        self._at += 1
        value = self._sum(depth + 1)
        if self._peek() != b")":
            raise BadExpression("a parenthesis is not closed")
        self._at += 1
        return value

    def _number(self) -> _Ratio:
        self._peek()
        value, self._at = _read_digits(self._data, self._at)
        if value is None:
            raise BadExpression("a number is missing at the end") if self._at >= len(self._data) else self._cannot_read()
        return value


def calculate(expression: bytes) -> str:
    """The value of sums, products, quotients and parentheses of decimal numbers: "-13.5", or "1/3" if it has no short
    decimal form. BadExpression says what is wrong."""
    if len(expression) > _MOST_EXPRESSION:
        raise BadExpression("the expression is too long")
    value = _Reader(expression).read()
    if value.below == 1:
        return str(value.above)
    scaled = value
    for decimals in range(1, _MOST_DECIMALS + 1):
        try:
            scaled = scaled.times(_Ratio(10, 1))
        except BadExpression:
            break
        if scaled.below == 1:
            digits = str(abs(scaled.above)).zfill(decimals + 1)
            return ("-" if scaled.above < 0 else "") + digits[:-decimals] + "." + digits[-decimals:]
    return f"{value.above}/{value.below}"
