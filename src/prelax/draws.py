"""Random numbers that are addressed, not consumed.

A draw is a pure function of an address: (seed, words..., name, row). Nothing is kept, so a run stopped anywhere and
resumed draws what it would have drawn, the draw of an image does not depend on which batch, process or device it is
in, and the CPU and the GPU give the same bits. Everything is integer tensor arithmetic: no synchronisation, works
under ``torch.compile`` and inside a CUDA graph (give the key as a tensor on the device).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The int64 with the same bits as an unsigned 64-bit integer."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift(x: Tensor, n: int) -> Tensor:
    """Logical shift right (torch's ``>>`` on int64 keeps the sign)."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def _mix(x: int | Tensor) -> int | Tensor:
    """splitmix64's finaliser: every bit of the input reaches every bit of the output."""
    if isinstance(x, int):
        x &= _MASK
        x = ((x ^ (x >> 30)) * _M1) & _MASK
        x = ((x ^ (x >> 27)) * _M2) & _MASK
        return x ^ (x >> 31)
    x = (x ^ _shift(x, 30)) * _signed(_M1)
    x = (x ^ _shift(x, 27)) * _signed(_M2)
    return x ^ _shift(x, 31)


@torch.compiler.assume_constant_result
def _word(word: int | str) -> int:
    """A 64-bit number for a word of an address (FNV-1a for text; stable over processes, unlike ``hash``)."""
    if isinstance(word, int):
        return _mix(word + 1)  # type: ignore[return-value]
    value = 0xCBF29CE484222325
    for byte in word.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    return value


def _add(key: int | Tensor, number: int) -> int | Tensor:
    if isinstance(key, int):
        return (key + number) & _MASK
    return key + _signed(number)


class Draws:
    """A stream of random columns, one row per image, read by name.

    >>> draws = Draws(0, rows=4).at("epoch", 3).at("view", 1)
    >>> draws.uniform("crop.area", 0.2, 1.0).shape
    torch.Size([4])
    >>> torch.equal(draws.uniform("x"), Draws(0, rows=4).at("epoch", 3).at("view", 1).uniform("x"))
    True

    Args:
        key: the seed; an int, or a 0-d int64 tensor on the device of the draws.
        rows: how many rows, or an int64 tensor of row ids (image numbers): the same id always draws the same numbers.
        device: where the columns are made; by default where ``rows`` or ``key`` is.
    """

    def __init__(self, key: int | Tensor, rows: int | Tensor, device: torch.device | str | None = None) -> None:
        if device is None:
            device = next((t.device for t in (rows, key) if isinstance(t, Tensor)), torch.device("cpu"))
        self.device = torch.device(device)
        self.rows = torch.arange(rows, device=self.device) if isinstance(rows, int) else rows.to(self.device)
        self.key = key

    @classmethod
    def of(cls, source: Draws | torch.Generator | int | None, rows: int, device: torch.device | str) -> Draws:
        """What a caller passed as ``generator``, as draws: draws themselves, a torch generator, a seed, or nothing."""
        if isinstance(source, Draws):
            return source
        if source is not None and not isinstance(source, torch.Generator):  # an int, of NumPy's too
            return cls(int(source), rows, device)
        where = source.device if source is not None else torch.device(device)
        key = torch.randint(-(1 << 62), 1 << 62, (), generator=source, device=where)
        return cls(key.to(device, non_blocking=torch.device(device).type == "cuda"), rows, device)

    def on_device(self) -> Draws:
        """These draws with their key on the device: an input of a compiled function, not a constant in it."""
        if isinstance(self.key, Tensor):
            return self
        return Draws(torch.full((), _signed(self.key), dtype=torch.int64, device=self.device), self.rows, self.device)

    def __len__(self) -> int:
        return self.rows.shape[0]

    def at(self, *words: int | str | Tensor) -> Draws:
        """The stream at a longer address; an integer tensor may be a word (an epoch counter on the device)."""
        key = self.key
        for word in words:
            if isinstance(word, Tensor):
                mixed = _mix(word.to(torch.int64) + 1)
                key = _mix(mixed + (_signed(key) if isinstance(key, int) else key))
            else:
                key = _mix(_add(key, _word(word)))
        return Draws(key, self.rows, self.device)

    def bits(self, name: str, n: int = 1) -> Tensor:
        """Random int64s, rows x n."""
        key = self.at(name).key
        start = _signed(key) if isinstance(key, int) else key
        # Xor before each product: an affine function of ``arange`` would be folded by the compiler into 32-bit indices.
        row = _mix((self.rows ^ start) * _signed(_GOLDEN))  # B
        column = (torch.arange(n, device=self.device) ^ _signed(_M1)) * _signed(_GOLDEN)  # n
        return _mix(row[:, None] + column)  # type: ignore[index, return-value]  # B x n

    def uniform(self, name: str, low: float = 0.0, high: float = 1.0, n: int | None = None) -> Tensor:
        """Floats in [low, high): a column, or rows x n."""
        unit = _shift(self.bits(name, n or 1), 40).to(torch.float32) * 2.0**-24
        value = unit if (low, high) == (0.0, 1.0) else low + unit * (high - low)
        return value if n else value[:, 0]

    def bernoulli(self, name: str, p: float) -> Tensor:
        """Booleans that are true with probability p."""
        return self.uniform(name) < p

    def integers(self, name: str, high: int) -> Tensor:
        """int64s in [0, high)."""
        return (self.uniform(name) * high).to(torch.int64).clamp_(max=high - 1)

    def permutation(self, name: str, k: int) -> Tensor:
        """A permutation of range(k) in every row, rows x k."""
        return self.bits(name, k).argsort(dim=1)

    def normal(self, name: str, n: int | None = None) -> Tensor:
        """Standard normal floats: a column, or rows x n."""
        both = self.uniform(name, n=2 * (n or 1))  # Box-Muller needs two uniforms for one normal
        radius = torch.sqrt(-2.0 * torch.log1p(-both[:, ::2]))
        value = radius * torch.cos(2.0 * math.pi * both[:, 1::2])
        return value if n else value[:, 0]
