"""AR hits, slices and the share of the gap, against definitions written out in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from seqmix.errors import ConfigError
from seqmix_recall.gap_counts import BigramCounts, bigram_codes, count_bigrams
from seqmix_recall.gap_hits import earlier_places, find_hits, row_codes
from seqmix_recall.gap_passages import choose_windows
from seqmix_recall.gap_plot import draw_places, place_bins
from seqmix_recall.gap_share import gap_share, hit_proportion, share_from_perplexities
from seqmix_recall.gap_slices import HITS, OTHERS, OVERALL, Tally, tally_slices, wanted_codes
from seqmix_recall.gap_statistics import measure_gap
from seqmix_recall.gap_windows import cut_windows, read_tokens

# Table 3 of Arora et al. 2023: perplexities overall, of AR hits, of other tokens.
ATTENTION = (12.37, 2.32, 14.04)
LIQUID_S4 = (16.80, 22.75, 16.42)


@pytest.mark.parametrize("row", [ATTENTION, LIQUID_S4])
def test_both_rows_of_the_table_give_the_share_of_the_paper(row: tuple[float, ...]) -> None:
    proportion = hit_proportion(*row)
    assert proportion == pytest.approx(0.0703, abs=2e-4)
    share = share_from_perplexities(
        LIQUID_S4[1], ATTENTION[1], LIQUID_S4[0], ATTENTION[0], proportion
    )
    assert share.value is not None
    assert 100 * share.value == pytest.approx(52.6, abs=0.3)
    assert 100 * share.value == pytest.approx(52.4, abs=0.1)


def test_the_share_where_there_is_no_gap_and_where_there_are_no_hits() -> None:
    assert gap_share(-2.0, -1.0, -3.0, -3.0, 0.1).value == 1
    assert gap_share(-2.0, -1.0, -2.5, -3.0, 0.1).value == 1
    none = gap_share(-1.0, -1.0, -3.0, -3.0, 0.1)
    assert none.value is None
    assert "no gap" in none.reason
    assert gap_share(math.nan, math.nan, -3.0, -2.0, 0.0).value is None
    assert "AR hit" in gap_share(math.nan, math.nan, -3.0, -2.0, 0.0).reason
    assert gap_share(-9.0, -1.0, -3.0, -2.9, 0.5).value == 1
    better_at_hits = gap_share(-1.0, -2.0, -3.0, -2.0, 0.1)
    assert better_at_hits.value == pytest.approx(-0.1)
    assert "better at the AR hits" in better_at_hits.reason


def test_figures_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"in 0\.\.1, found 1\.5"):
        gap_share(-1, -1, -2, -1, 1.5)
    with pytest.raises(ConfigError, match="should be finite"):
        gap_share(-1, -1, math.nan, -1, 0.5)
    with pytest.raises(ConfigError, match="above 0"):
        share_from_perplexities(0, 1, 2, 3, 0.5)
    with pytest.raises(ConfigError, match="should lie between"):
        hit_proportion(20, 2, 14)
    with pytest.raises(ConfigError, match="should differ"):
        hit_proportion(2, 2, 2)


def drawn(seed: int, size: int, vocab: int) -> np.ndarray:
    return np.random.default_rng(seed).zipf(1.5, size=size) % vocab


@pytest.mark.parametrize("chunk", [1, 7, 100, 10_000])
def test_counts_are_those_of_a_counter(chunk: int) -> None:
    arrays = [drawn(0, 999, 30), drawn(1, 1, 30), drawn(2, 400, 30), np.zeros(0, np.int64)]
    expected: Counter[tuple[int, int]] = Counter()
    for array in arrays:
        expected.update(zip(array[:-1].tolist(), array[1:].tolist(), strict=True))
    read: list[int] = []
    counts = count_bigrams(arrays, chunk=chunk, watch=read.append)
    assert counts.tokens == sum(read) == 1400
    assert len(counts.codes) == len(expected)
    pairs = np.array([[a, b] for a in range(30) for b in range(30)])
    found = counts.of(bigram_codes(pairs[:, 0], pairs[:, 1]))
    assert found.tolist() == [expected[int(a), int(b)] for a, b in pairs]
    only = np.unique(bigram_codes(pairs[::3, 0], pairs[::3, 1]))
    some = count_bigrams(arrays, only=only, chunk=chunk)
    assert some.of(only).tolist() == counts.of(only).tolist()
    with pytest.raises(ConfigError, match="were not counted"):
        some.of(bigram_codes(np.array([3]), np.array([1])) + 7)


def test_ids_up_to_the_largest_have_codes_of_their_own() -> None:
    most = 2**31 - 1
    codes = bigram_codes(np.array([most, most, 0, 1]), np.array([most, 0, most, 0]))
    assert len(set(codes.tolist())) == 4
    assert (codes >= 0).all()


def test_counts_survive_the_disk_and_damage_is_said(tmp_path: Path) -> None:
    counts = count_bigrams([drawn(0, 500, 20)])
    path = tmp_path / "new" / "counts.npz"
    counts.save(path)
    read = BigramCounts.load(path)
    assert (read.codes == counts.codes).all()
    assert (read.counts == counts.counts).all()
    assert (read.tokens, read.complete) == (500, True)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"counts\.npz: is no file of bigram counts"):
        BigramCounts.load(path)
    np.savez(path, codes=np.array([3, 1]), counts=np.array([1, 1]), about=np.array([4, 1]))
    with pytest.raises(ConfigError, match="sorted codes"):
        BigramCounts.load(path)
    with pytest.raises(ConfigError, match="no file of bigram counts"):
        BigramCounts.load(tmp_path / "nowhere.npz")


def plain_hits(row: list[int], size: int, counts: Counter, threshold: int) -> list[tuple]:
    """The definition, word by word: hit or not, latest earlier place, training count."""
    seen: dict[tuple[int, int], int] = {}
    found = []
    for place in range(size):
        bigram = (row[place], row[place + 1])
        earlier = seen.get(bigram, -1)
        found.append((earlier >= 0 and counts[bigram] < threshold, earlier, counts[bigram]))
        seen[bigram] = place
    return found


@pytest.mark.parametrize("threshold", [1, 3, 20, 10**6])
def test_hits_are_those_of_the_definition(threshold: int) -> None:
    train, text = drawn(5, 2000, 12), drawn(6, 6 * 41, 12).reshape(6, 41)
    sizes = np.array([40, 40, 17, 1, 40, 0])
    valid = np.arange(40) < sizes[:, None]
    counter = Counter(zip(train[:-1].tolist(), train[1:].tolist(), strict=True))
    hits = find_hits(text, valid, count_bigrams([train]), threshold)
    for row, size in enumerate(sizes):
        expected = plain_hits(text[row].tolist(), int(size), counter, threshold)
        found = [
            (bool(hits.is_hit[row, p]), int(hits.earlier[row, p]), int(hits.counts[row, p]))
            for p in range(size)
        ]
        assert found == expected
        assert not hits.is_hit[row, size:].any()
        assert (hits.earlier[row, size:] == -1).all()
    assert (hits.distances[hits.repeated] > 0).all()


def test_the_earlier_place_is_the_latest_one() -> None:
    assert earlier_places(np.array([[5, 7, 5, 5, 7]])).tolist() == [[-1, -1, 0, 2, 1]]


def test_windows_score_every_token_but_the_first_once() -> None:
    tokens = np.arange(100, 123)
    windows = cut_windows(tokens, 5)
    targets = []
    for number in range(len(windows)):
        row, valid = windows.take(number, number + 1)
        assert row[0, 0] == 100 + 5 * number
        targets += row[0, 1:][valid[0]].tolist()
    assert targets == tokens[1:].tolist()
    assert windows.sizes.tolist() == [5, 5, 5, 5, 2]
    assert windows.take(3, 5)[0].shape == (2, 6)
    assert len(windows.limited(2)) == 2


def test_windows_keep_within_documents() -> None:
    tokens = np.array([1, 2, 3, 0, 0, 4, 0, 5, 6, 7, 8])
    windows = cut_windows(tokens, 2, separator=0)
    rows = [windows.take(i, i + 1) for i in range(len(windows))]
    assert [row[0, : valid.sum() + 1].tolist() for row, valid in rows] == [
        [1, 2, 3],
        [3, 0],
        [4, 0],
        [5, 6, 7],
        [7, 8],
    ]
    assert windows.units.tolist() == [0, 0, 1, 2, 2]


def test_the_fingerprint_knows_tokens_and_cut() -> None:
    tokens = np.arange(50)
    same = cut_windows(tokens.astype(np.uint8), 8).fingerprint
    assert cut_windows(tokens, 8).fingerprint == same
    others = [
        cut_windows(tokens, 9),
        cut_windows(tokens + 1, 8),
        cut_windows(tokens, 8, separator=7),
        cut_windows(tokens, 8).limited(3),
    ]
    assert len({same, *(w.fingerprint for w in others)}) == 5


def test_token_files_that_are_none_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(6).reshape(2, 3))
    with pytest.raises(ConfigError, match=r"one row of integers, found int64 \[2, 3\]"):
        read_tokens(path)
    np.save(path, np.array([1, -2]))
    with pytest.raises(ConfigError, match=r"ids should be in 0\.\."):
        read_tokens(path)
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"a\.npy: is no token file"):
        read_tokens(path)
    with pytest.raises(ConfigError, match="length should be at least 1"):
        cut_windows(np.arange(3), 0)
    with pytest.raises(ConfigError, match="nothing to predict"):
        cut_windows(np.arange(1), 4)


def case(
    units: bool = False,
) -> tuple[np.ndarray, Counter, object, np.ndarray, np.ndarray]:
    train, text = drawn(8, 3000, 15), drawn(9, 1001, 15)
    counter = Counter(zip(train[:-1].tolist(), train[1:].tolist(), strict=True))
    windows = cut_windows(text, 64, separator=1 if units else None)
    random = np.random.default_rng(3)
    shape = (len(windows), 64)
    return text, counter, windows, -random.random(shape), -random.random(shape)


@pytest.mark.parametrize("units", [False, True])
def test_slices_sum_what_they_should(units: bool) -> None:
    _, counter, windows, model, reference = case(units)
    counts = count_bigrams([drawn(8, 3000, 15)], only=wanted_codes(windows))
    tally = tally_slices(windows, model, reference, counts, threshold=30)
    sums = {name: np.zeros(3) for name in (OVERALL, HITS, OTHERS)}
    far, rare, frequent = np.zeros(3), np.zeros(3), np.zeros(3)
    for number in range(len(windows)):
        row, valid = windows.take(number, number + 1)
        plain = plain_hits(row[0].tolist(), int(valid.sum()), counter, 30)
        for place, (hit, earlier, count) in enumerate(plain):
            value = np.array([1, model[number, place], reference[number, place]])
            sums[OVERALL] += value
            sums[HITS if hit else OTHERS] += value
            far += value * (hit and 16 <= place - earlier < 64)
            rare += value * (hit and 1 <= count < 10)
            frequent += value * (not hit and earlier >= 0)
    found = dict(zip(tally.names, tally.sums.sum(0), strict=True))
    for name, expected in sums.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12)
    np.testing.assert_allclose(found["AR hits, distance 16-63"], far, rtol=1e-12)
    np.testing.assert_allclose(found["AR hits, training count 1-9"], rare, rtol=1e-12)
    np.testing.assert_allclose(found["repeats, frequent in training"], frequent, rtol=1e-12)
    for what in ("distance", "training count"):
        parts = [v for k, v in found.items() if what in k and k.startswith("AR hits")]
        np.testing.assert_allclose(sum(parts), found[HITS], rtol=1e-12)
    assert tally.hits_at.sum() == found[HITS][0]
    assert tally.targets_at.sum() == found[OVERALL][0] == windows.sizes.sum()
    assert tally.hit_gaps.sum() == pytest.approx(found[HITS][2] - found[HITS][1])


def test_the_gap_is_the_formula_of_its_means() -> None:
    _, _, windows, model, reference = case()
    counts = count_bigrams([drawn(8, 3000, 15)])
    tally = tally_slices(windows, model - 0.2, reference, counts, threshold=30)
    gap = measure_gap(tally, seed=1, resamples=200)
    all_tokens, hits, others = (gap.slice(name) for name in (OVERALL, HITS, OTHERS))
    assert all_tokens.model_perplexity == pytest.approx(math.exp(-all_tokens.model))
    expected = (hits.model - hits.reference) * hits.proportion
    expected /= all_tokens.model - all_tokens.reference
    assert gap.share.value == pytest.approx(expected)
    assert hits.contribution == pytest.approx(expected)
    assert hits.contribution + others.contribution == pytest.approx(1)
    again = measure_gap(tally, seed=1, resamples=200)
    assert again == gap
    assert measure_gap(tally, seed=2, resamples=200).share_error != gap.share_error


def test_errors_are_those_of_a_mean_of_independent_units() -> None:
    random = np.random.default_rng(0)
    values = random.normal(-3, 0.5, size=(400, 2))
    sums = np.zeros((400, 3, 3))
    sums[:, 0] = np.column_stack([np.ones(400), values])
    sums[:200, 1] = sums[:200, 0]
    sums[:, 2] = sums[:, 0] - sums[:, 1]
    none = np.zeros(1, np.int64)
    gap = measure_gap(Tally((OVERALL, HITS, OTHERS), sums, none, none, np.zeros(400)), seed=0)
    for column, found in enumerate((gap.slices[0].model_error, gap.slices[0].reference_error)):
        assert found == pytest.approx(values[:, column].std() / 20, rel=0.1)
    difference = (values[:, 1] - values[:, 0]).std() / 20
    assert gap.slices[0].difference_error == pytest.approx(difference, rel=0.1)
    alone = measure_gap(Tally((OVERALL, HITS, OTHERS), sums[:1], none, none, np.zeros(1)))
    assert alone.slices[0].model_error is None
    assert alone.share_error is None


def test_missing_scores_are_named() -> None:
    _, _, windows, model, reference = case()
    model[3, 5] = np.nan
    counts = count_bigrams([drawn(8, 3000, 15)])
    with pytest.raises(ConfigError, match="window 3 has nan at target 5"):
        tally_slices(windows, model, reference, counts)


def test_passages_are_one_by_chance_and_the_largest_gaps() -> None:
    gaps = np.array([0.5, -1.0, 3.0, 0.0, 2.0])
    chosen = choose_windows(gaps, 3, seed=0)
    assert chosen[0][1] == "drawn at random"
    rest = [i for i, _ in chosen[1:]]
    assert rest == [i for i in (2, 4, 0) if i != chosen[0][0]][:2]
    assert choose_windows(gaps, 0, 0) == []
    assert len(choose_windows(np.zeros(2), 5, 0)) == 1


def test_bins_keep_every_place() -> None:
    hits = np.arange(100)
    edges, found, asked = place_bins(hits, np.ones(100, np.int64))
    assert (edges[0], edges[-1], len(found)) == (0, 100, 32)
    assert found.sum() == hits.sum()
    assert asked.tolist() == np.diff(edges).tolist()
    assert place_bins(np.ones(3, np.int64), np.ones(3, np.int64))[1].tolist() == [1, 1, 1]


def test_the_picture_is_the_same_every_time() -> None:
    pytest.importorskip("matplotlib")
    counts = np.arange(40)
    picture = draw_places(counts, np.full(40, 50), "780 AR hits")
    assert picture.startswith(b"\x89PNG")
    assert draw_places(counts, np.full(40, 50), "780 AR hits") == picture
    assert draw_places(counts[::-1].copy(), np.full(40, 50), "780 AR hits") != picture


def test_codes_behind_the_end_of_a_row_never_repeat() -> None:
    codes = row_codes(np.zeros((1, 9), np.int64), np.zeros((1, 8), np.bool_))
    assert len(set(codes[0].tolist())) == 8
    assert (codes < 0).all()
