"""A site's policy fails closed."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift import privacy
from fedshift.errors import FedshiftError, InputError
from fedshift.privacy.policy import DISCLOSURE_LEVELS, NEEDS, Privacy, Refused, describe


def test_default_sends_no_sample_and_no_count() -> None:
    policy = Privacy()
    allowed = [what for what in NEEDS if policy.allows(what)]
    assert allowed == ["train.model", "evaluate.model", "label_marginals", "train.ratio"]


@pytest.mark.parametrize("disclosure_level", range(6))
def test_a_disclosure_level_allows_itself_and_those_below(disclosure_level: int) -> None:
    policy = Privacy(disclosure_level=disclosure_level, raw=disclosure_level == 5)
    for what, need in NEEDS.items():
        assert policy.allows(what) == (need <= disclosure_level)


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans()))
def test_what_is_unknown_is_refused_on_every_disclosure_level(request: Any) -> None:
    if request in NEEDS:
        return
    top = Privacy(disclosure_level=5, raw=True)
    assert not top.allows(request)
    with pytest.raises(Refused, match="a request must be one of"):
        top.check(request)


def test_a_refusal_names_what_was_asked_what_is_allowed_and_what_to_do() -> None:
    with pytest.raises(
        Refused,
        match=r"'bin_counts' needs disclosure level 3 \(bin counts\); this site allows "
        r"disclosure level 2 \(ratio gradients\); request less, or .* raise its disclosure level",
    ):
        Privacy().check("bin_counts")
    with pytest.raises(Refused, match=r"did you mean 'train\.ratio'"):
        Privacy().check("train.rato")
    assert issubclass(Refused, FedshiftError)


def test_few_rows_are_refused_without_saying_how_few() -> None:
    policy = Privacy(min_rows=20)
    policy.check("train.ratio", rows=20)
    with pytest.raises(Refused) as result:
        policy.check("train.ratio", rows=13)
    assert "20" in str(result.value)
    assert "13" not in str(result.value)
    with pytest.raises(Refused):
        policy.check("train.ratio", rows=float("nan"))  # type: ignore[arg-type]


def test_raw_samples_need_it_said_twice() -> None:
    with pytest.raises(InputError, match=r"as they are.*raw = true"):
        Privacy(disclosure_level=5)
    assert Privacy(disclosure_level=5, raw=True).allows("raw_samples")
    assert not Privacy(raw=True).allows("raw_samples")  # the flag alone opens nothing


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("disclosure_level", 6),
        ("disclosure_level", -1),
        ("disclosure_level", True),
        ("disclosure_level", 2.0),
        ("disclosure_level", "raw_samples"),
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
    table = tomllib.loads("disclosure_level = 3\nmin_count = 8\nnoise = 1.5\nepsilon_counts = 0.5")
    policy = Privacy(**table)
    assert repr(policy) == (
        "Privacy(disclosure level 3: bin counts; distributions of ≥ 20 rows, cells of ≥ 8; "
        "gradient noise 1.5 at "
        "clip 1, counts at ε = 0.5)"
    )


def test_scores_are_told_unless_their_owner_says_no() -> None:
    assert Privacy().scores
    assert repr(Privacy(scores=False)).endswith("no noise; no scores)")


def test_every_disclosure_level_says_what_leaves_and_what_it_reveals() -> None:
    for number, level in enumerate(DISCLOSURE_LEVELS):
        text = describe(number)
        assert all(part in text for part in level)
        assert text.startswith(f"Disclosure level {number}, ")
    with pytest.raises(InputError, match="0 to 5"):
        describe(6)


def test_the_public_names_are_sorted_and_load() -> None:
    names = privacy.__all__
    assert dir(privacy) == sorted(names)
    assert all(getattr(privacy, name).__name__ == name for name in names if not name.isupper())
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        privacy.nothing  # noqa: B018
