"""Addressed randomness: the same address gives the same bits, and different ones give independent bits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prelax.draws import Draws, _mix, _signed, _word

ROWS = 1 << 16


def test_mixing_a_tensor_and_mixing_an_int_agree() -> None:
    values = [0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF]
    mixed = _mix(torch.tensor([_signed(v) for v in values]))
    assert mixed.tolist() == [_signed(_mix(v)) for v in values]  # type: ignore[arg-type, union-attr]


def test_mixing_is_splitmix64() -> None:
    state, expected = 0x9E3779B97F4A7C15, 0xE220A8397B1DCDAF  # the first output of splitmix64 seeded with 0
    assert _mix(state) == expected


def test_a_word_of_text_is_its_fnv_1a_hash() -> None:
    assert [_word(""), _word("a"), _word("foobar")] == [0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8]


def test_an_address_draws_these_bits_in_every_version() -> None:  # or a run begun by an earlier one would not go on
    drawn = Draws(1, 2).at("epoch", 3).bits("crop.area", 2)
    assert drawn.tolist() == [
        [-7647172014157431976, 8488971411589199332],
        [-2498989318430365782, -5924944590991461339],
    ]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(-(2**63), 2**63 - 1), word=st.integers(-(2**40), 2**40))
def test_a_key_as_a_tensor_draws_what_the_int_draws(seed: int, word: int) -> None:
    plain, tensor = Draws(seed, 5), Draws(torch.tensor(seed), 5)
    assert torch.equal(plain.at(word, "x").bits("y", 3), tensor.at(word, "x").bits("y", 3))
    assert torch.equal(plain.at("e", word).bits("y"), plain.at("e", torch.tensor(word)).bits("y"))
    assert torch.equal(plain.bits("y"), plain.on_device().bits("y"))


def test_the_draw_of_an_image_does_not_depend_on_its_batch() -> None:
    whole = Draws(7, 100).uniform("a", n=4)
    part = Draws(7, torch.tensor([40, 3, 99])).uniform("a", n=4)
    assert torch.equal(part, whole[[40, 3, 99]])


def test_a_longer_row_begins_with_the_shorter_one() -> None:
    assert torch.equal(Draws(7, 10).bits("a", 8)[:, :3], Draws(7, 10).bits("a", 3))


def test_uniforms_are_uniform() -> None:
    u = Draws(0, ROWS).uniform("u", n=4)
    assert u.min() >= 0
    assert u.max() < 1
    for column in (*u.unbind(1), u.flatten()):
        counts = torch.histc(column.double(), 256, 0, 1)
        expected = column.numel() / 256
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi2 - 255) < 5 * math.sqrt(2 * 255)


def test_every_bit_is_balanced() -> None:
    bits = Draws(3, ROWS).bits("b", 2).flatten()
    for place in range(64):
        share = ((bits >> place) & 1).double().mean()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(len(bits))


def test_names_seeds_words_rows_and_columns_are_uncorrelated() -> None:
    base = Draws(0, ROWS)
    columns = [base.uniform(name) for name in ("a", "b", "crop.area")]
    columns += [Draws(seed, ROWS).uniform("a") for seed in (1, 2, -1)]
    columns += [base.at("epoch", epoch).uniform("a") for epoch in (0, 1, 2)]
    columns += [base.at("view", 1).at("step", 1).uniform("a"), columns[0].roll(1), columns[0].roll(2)]
    columns += list(base.uniform("a", n=3).unbind(1))[1:]
    correlation = torch.corrcoef(torch.stack(columns).double()) - torch.eye(len(columns))
    assert correlation.abs().max() < 5 / math.sqrt(ROWS)


def test_successive_rows_fill_the_square() -> None:
    u = Draws(5, ROWS + 1).uniform("u")
    cells = (u[:-1] * 32).long() * 32 + (u[1:] * 32).long()
    expected = ROWS / 1024
    chi2 = ((torch.bincount(cells, minlength=1024) - expected) ** 2 / expected).sum()
    assert abs(chi2 - 1023) < 5 * math.sqrt(2 * 1023)


def test_no_value_is_drawn_twice() -> None:
    bits = torch.cat([Draws(seed, ROWS).at("view", view).bits("b")[:, 0] for seed in (0, 1) for view in (1, 2)])
    assert len(bits.unique()) == len(bits)


def test_bernoulli_integers_permutations_and_normals_have_their_distributions() -> None:
    draws = Draws(11, ROWS)
    assert abs(draws.bernoulli("p", 0.2).double().mean() - 0.2) < 5 * 0.4 / math.sqrt(ROWS)
    assert draws.bernoulli("p", 1.0).all()
    assert not draws.bernoulli("p", 0.0).any()
    counts = torch.bincount(draws.integers("i", 4), minlength=4)
    assert (counts - ROWS / 4).abs().max() < 5 * math.sqrt(ROWS * 3 / 16)
    orders = draws.permutation("o", 4)
    assert torch.equal(orders.sort(1).values, torch.arange(4).expand(ROWS, 4))
    ranks = (orders * torch.tensor([64, 16, 4, 1])).sum(1)
    values, counts = ranks.unique(return_counts=True)
    assert len(values) == 24
    assert (counts - ROWS / 24).abs().max() < 5 * math.sqrt(ROWS / 24)
    normal = draws.normal("n", n=2).flatten().double()
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    assert abs((normal**4).mean() - 3) < 0.15
    assert normal.abs().max() < 7


def test_a_probability_of_zero_is_never_met() -> None:
    draws = Draws(0, torch.tensor([18880268]))  # the first row whose uniform is 0 itself
    assert draws.uniform("u").item() == 0.0
    assert not draws.bernoulli("u", 0.0).any()


def test_normals_are_a_column_or_columns_of_their_own() -> None:
    draws = Draws(2, 500)
    assert draws.normal("n").shape == (500,)
    columns = draws.normal("n", n=3)
    assert columns.shape == (500, 3)
    assert (torch.corrcoef(columns.T) - torch.eye(3)).abs().max() < 5 / math.sqrt(500)


def test_columns_are_made_where_the_rows_are() -> None:
    assert Draws(0, 4, device="meta").uniform("u").device.type == "meta"
    rows = torch.arange(4, device="meta")
    draws = Draws(torch.tensor(0), rows)
    assert draws.device.type == "meta"
    assert len(draws) == 4


def test_what_a_caller_passes_as_generator_becomes_draws() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (Draws.of(generator, 3, "cpu").bits("x") for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(Draws.of(torch.Generator().manual_seed(1), 3, "cpu").bits("x"), first)
    assert torch.equal(Draws.of(9, 3, "cpu").bits("x"), Draws(9, 3).bits("x"))
    draws = Draws(9, 3)
    assert Draws.of(draws, 3, "cpu") is draws
    torch.manual_seed(0)
    once = Draws.of(None, 3, "cpu").bits("x")
    torch.manual_seed(0)
    assert torch.equal(Draws.of(None, 3, "cpu").bits("x"), once)


@pytest.mark.parametrize("epoch", [0, 5])
def test_draws_trace_into_one_graph(epoch: int) -> None:
    def columns(key: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        return Draws(key, 6).at("epoch", word).uniform("x", n=2)

    traced = torch.compile(columns, fullgraph=True, backend="eager")
    expected = Draws(4, 6).at("epoch", epoch).uniform("x", n=2)
    assert torch.equal(traced(torch.tensor(4), torch.tensor(epoch)), expected)


def test_a_seed_may_be_an_integer_of_numpys() -> None:
    wanted = Draws.of(7, 4, "cpu").uniform("x")
    assert torch.equal(Draws.of(np.int64(7), 4, "cpu").uniform("x"), wanted)  # type: ignore[arg-type]
