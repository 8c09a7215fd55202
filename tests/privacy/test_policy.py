"""A site's policy fails closed."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift import privacy
from fedshift.errors import FedshiftError, InputError
from fedshift.privacy.policy import NEEDS, RUNGS, Privacy, Refused, describe


def test_default_sends_no_sample_and_no_count() -> None:
    policy = Privacy()
    allowed = [what for what in NEEDS if policy.allows(what)]
    assert allowed == ["train.model", "evaluate.model", "label_marginals", "train.ratio"]


@pytest.mark.parametrize("rung", range(6))
def test_a_rung_allows_itself_and_those_below(rung: int) -> None:
    policy = Privacy(rung=rung, raw=rung == 5)
    assert [policy.allows(r) for r in range(6)] == [r <= rung for r in range(6)]
    for what, need in NEEDS.items():
        assert policy.allows(what) == (need <= rung)


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans()))
def test_what_is_unknown_is_refused_on_every_rung(asked: Any) -> None:
    if asked in NEEDS or (
        isinstance(asked, int) and not isinstance(asked, bool) and asked in range(6)
    ):
        return
    top = Privacy(rung=5, raw=True)
    assert not top.allows(asked)
    with pytest.raises(Refused, match="answers only what it knows"):
        top.check(asked)


def test_a_refusal_names_what_was_asked_what_is_allowed_and_what_to_do() -> None:
    with pytest.raises(
        Refused,
        match=r"'bin_counts' needs rung 3 \(bin counts\); this site allows "
        r"rung 2 \(ratio gradients\); ask for less, or .* raise its rung",
    ):
        Privacy().check("bin_counts")
    with pytest.raises(Refused, match=r"did you mean 'train\.ratio'"):
        Privacy().check("train.rato")
    assert issubclass(Refused, FedshiftError)


def test_few_rows_are_refused_without_saying_how_few() -> None:
    policy = Privacy(min_rows=20)
    policy.check("train.ratio", rows=20)
    with pytest.raises(Refused) as found:
        policy.check("train.ratio", rows=13)
    assert "20" in str(found.value)
    assert "13" not in str(found.value)
    with pytest.raises(Refused):
        policy.check("train.ratio", rows=float("nan"))  # type: ignore[arg-type]


def test_raw_samples_need_it_said_twice() -> None:
    with pytest.raises(InputError, match=r"as they are.*raw = true"):
        Privacy(rung=5)
    assert Privacy(rung=5, raw=True).allows("raw_samples")
    assert not Privacy(raw=True).allows("raw_samples")  # the flag alone opens nothing


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rung", 6),
        ("rung", -1),
        ("rung", True),
        ("rung", 2.0),
        ("rung", "raw_samples"),
        ("min_rows", 0),
        ("min_count", -1),
        ("min_count", 2.5),
        ("noise", -0.1),
        ("noise", float("nan")),
        ("noise", float("inf")),
        ("clip", 0.0),
        ("epsilon_counts", 0.0),
        ("epsilon_counts", float("inf")),
        ("delta", 0.0),
        ("delta", 1.0),
        ("raw", 1),
        ("scores", "no"),
    ],
)
def test_bad_settings_are_named(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=key):
        Privacy(**{key: value})


def test_toml_spells_it() -> None:
    table = tomllib.loads("rung = 3\nmin_count = 8\nnoise = 1.5\nepsilon_counts = 0.5")
    policy = Privacy(**table)
    assert repr(policy) == (
        "Privacy(rung 3: bin counts; laws of ≥ 20 rows, cells of ≥ 8; gradient noise 1.5 at "
        "clip 1, counts at ε = 0.5)"
    )


def test_scores_are_told_unless_their_owner_says_no() -> None:
    assert Privacy().scores
    assert repr(Privacy(scores=False)).endswith("no noise; no scores)")


def test_every_rung_says_what_leaves_and_what_is_learnt() -> None:
    for number, rung in enumerate(RUNGS):
        text = describe(number)
        assert all(part in text for part in rung)
        assert text.startswith(f"Rung {number}, ")
    with pytest.raises(InputError, match="0 to 5"):
        describe(6)


def test_the_door_is_sorted_and_opens() -> None:
    names = privacy.__all__
    assert dir(privacy) == sorted(names)
    assert all(getattr(privacy, name).__name__ == name for name in names if not name.isupper())
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        privacy.nothing  # noqa: B018
