"""Whole federations in, a diagnosis out."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from distributions import hard_table, moved, two_classes
from rich.console import Console

from fedshift.data.federation import ClientData, Federation
from fedshift.diagnose import Diagnosis, diagnose, render
from fedshift.errors import InputError


def client(train, test, *, labelled=True):
    return (train.x, train.y, test.x, test.y) if labelled else (train.x, train.y, test.x)


@pytest.fixture(scope="module")
def federation() -> Federation:
    rng = np.random.default_rng(0)
    n = 400
    return Federation.of(
        {
            "calm": client(two_classes(n, rng), two_classes(n, rng)),
            "label": client(two_classes(n, rng), moved("label", n, rng), labelled=False),
            "covariate": client(two_classes(n, rng), moved("covariate", n, rng)),
            "odd": client(moved("concept", n, rng), moved("concept", n, rng)),
        }
    )


@pytest.fixture(scope="module")
def diagnosis(federation) -> Diagnosis:
    return diagnose(federation)


def test_every_site_gets_its_own_answer(diagnosis):
    assert {s.site: s.status for s in diagnosis.sites} == {
        "calm": "no shift found",
        "label": "shift",
        "covariate": "shift",
        "odd": "no shift found",
    }
    assert diagnosis["label"].shift_type.name == "label"
    assert diagnosis["covariate"].shift_type.name == "covariate"
    assert diagnosis["covariate"].columns[0].name == "column 5"
    assert diagnosis["calm"].columns == ()
    assert diagnosis["calm"].overlap.share == 1.0
    assert 0.4 < diagnosis["covariate"].overlap.share < 0.9


def test_a_site_whose_labels_follow_otherwise_stands_out_between_sites(diagnosis):
    odd = max(diagnosis.between, key=lambda c: c.main.auc)
    assert odd.site == "odd"
    assert (odd.shift_type.name, odd.shift_type.concept) == ("none", True)
    assert odd["labels given inputs"].status == "shift"
    assert odd["inputs"].status == "no shift found"


def test_sentences_say_what_to_do(diagnosis):
    text = " ".join(diagnosis.sentences())
    assert text.startswith("Training and test differ at 2 of 4 sites; sites differ in ")
    assert "run 'fedshift train': it uses weights only if they reduce the loss" in text
    assert "Weighting cannot correct this" in text
    assert "Warning: labels differ at the same inputs" in text
    assert "label: without test labels it is unknown" in text
    assert "Weights that depend on the label correct this" in text
    for s in diagnosis.sites:
        assert any(t.startswith(s.site) for t in diagnosis.sentences())


def test_the_diagnosis_is_a_value(diagnosis):
    assert "\n" not in repr(diagnosis)
    assert repr(diagnosis).startswith("Diagnosis(training and test differ at 2 of 4 sites")
    with pytest.raises(dataclasses.FrozenInstanceError):
        diagnosis.seed = 3
    plain = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert plain["schema"] == "fedshift.diagnosis/1"
    assert plain["sites"][1]["shift_type"]["name"] == "label"
    with pytest.raises(InputError, match=r"did you mean 'label'"):
        diagnosis["labels"]
    with pytest.raises(InputError, match="question must be one of inputs"):
        diagnosis["calm"]["colour"]


def test_frames_have_a_row_a_comparison(diagnosis):
    import pandas

    frame = pandas.DataFrame(diagnosis.to_records())
    assert list(frame["site"])[:4] == ["calm", "label", "covariate", "odd"]
    assert len(frame) == len(diagnosis.sites) + len(diagnosis.between) == 8
    assert set(frame["status"]) <= {
        "shift",
        "no shift found",
        "too small to matter",
        "inconclusive",
    }


def test_it_can_be_shown(diagnosis):
    console = Console(file=io.StringIO(), width=200, color_system=None)
    render(diagnosis, console)
    text = console.file.getvalue()
    assert "no shift found" in text
    assert "ESS" in text
    assert "column 5" in text


def test_the_order_of_sites_is_irrelevant(federation, diagnosis):
    turned = diagnose(Federation(federation.clients[::-1]))
    assert {s.site: s for s in turned.sites} == {s.site: s for s in diagnosis.sites}
    assert {c.site: c for c in turned.between} == {c.site: c for c in diagnosis.between}


def test_units_are_irrelevant_and_so_is_the_order_of_columns(federation, diagnosis):
    unit = np.array([1e-6, 1.0, 3.0, 1e5, 7.0, 0.1])

    def turned(c: ClientData) -> ClientData:
        return dataclasses.replace(c, x=(c.x * unit)[:, ::-1], test_x=(c.test_x * unit)[:, ::-1])

    other = diagnose(Federation(tuple(turned(c) for c in federation)))
    for a, b in zip(
        (*diagnosis.sites, *diagnosis.between), (*other.sites, *other.between), strict=True
    ):
        assert (a.status, a.shift_type.name) == (b.status, b.shift_type.name)
        assert [f.p for f in a.findings] == pytest.approx([f.p for f in b.findings], abs=0.02)
        assert [f.auc for f in a.findings] == pytest.approx([f.auc for f in b.findings], abs=1e-3)


def test_false_alarms_of_whole_diagnoses():
    """At most 5 % of diagnoses without shift may raise one alarm: 40 repeats, small samples."""
    alarms = 0
    for repeat in range(40):
        rng = np.random.default_rng([7, repeat])
        draw = (hard_table, two_classes)[repeat % 2]
        sizes = rng.integers(50, 120, (3, 2))
        clients = {
            f"site {k}": client(draw(a, rng), draw(b, rng), labelled=repeat % 3 > 0)
            for k, (a, b) in enumerate(sizes)
        }
        alarms += bool(diagnose(Federation.of(clients), seed=repeat).shifted)
    assert alarms <= 2 + 3  # .05 · 40, and two standard errors


def test_with_many_rows_a_trifle_is_called_one():
    rng = np.random.default_rng(1)
    x, test = rng.standard_normal((2, 20_000, 2))
    test[:, 0] += 0.07
    y = (x[:, 1] > 0).astype(int)
    diagnosis = diagnose(Federation.of({"big": (x, y, test)}), rows=20_000)
    site = diagnosis["big"]
    assert site.status == "too small to matter"
    assert not diagnosis.shifted
    assert site["inputs"].p < 0.01
    assert site["inputs"].auc < 0.53
    assert "too small to matter" in diagnosis.sentences()[1]


def hard_cases():
    rng = np.random.default_rng(2)

    def x(n, mean=0.0):
        return rng.normal(mean, 1, size=(n, 3))

    def y(n):
        return rng.integers(0, 2, n)

    same = x(60)
    return {
        "five rows": {"a": (x(5), y(5), x(5)), "b": (x(80), y(80), x(80, 1))},
        "one test row": {"a": (x(50), y(50), x(1)), "b": (x(50), y(50), x(50))},
        "one class": {"a": (x(60), np.zeros(60), x(60, 1)), "b": (x(60), y(60), x(60), y(60))},
        "only one class": {"a": (x(60), np.ones(60), x(60, 1), np.ones(60))},
        "constant": {"a": (np.ones((40, 2)), y(40), np.ones((40, 2)), y(40))},
        "constant but another": {"a": (np.ones((40, 2)), y(40), np.zeros((40, 2)), y(40))},
        "text labels": {
            "a": (x(40), np.array(["no", "yes"])[y(40)], x(40, 2)),
            "b": (x(40), np.array(["no", "yes"], object)[y(40)], x(40), np.repeat("maybe", 40)),
        },
        "numbers as labels": {"a": (x(90), rng.normal(size=90), x(90, 1), rng.normal(size=90) + 2)},
        "many classes": {"a": (x(90), rng.integers(0, 60, 90), x(90, 1), rng.integers(0, 60, 90))},
        "the same rows": {"a": (same, y(60), same.copy())},
        "far apart": {"a": (x(60), y(60), x(60, 40)), "b": (x(60, 1e6), y(60), x(60, 1e6))},
        "huge": {"a": (1e300 * x(60), y(60), 1e300 * x(60)), "b": (x(60), y(60), x(60))},
        "images": {"a": (rng.random((40, 1, 9, 9)), y(40), rng.random((40, 1, 9, 9)) ** 2, y(40))},
        "more columns than rows": {
            "a": (rng.normal(size=(20, 90)), y(20), rng.normal(size=(20, 90)))
        },
    }


@pytest.mark.parametrize("case", hard_cases())
def test_hard_cases_end_in_words(case):
    diagnosis = diagnose(Federation.of(hard_cases()[case]))
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert all(s and s.endswith(".") and "nan" not in s for s in diagnosis.sentences())
    assert len(diagnosis.to_records()) == len(diagnosis.sites) + len(diagnosis.between)


def test_what_is_unknown_is_inconclusive():
    diagnosis = diagnose(Federation.of(hard_cases()["five rows"]))
    assert diagnosis["a"].status == "inconclusive"
    assert diagnosis["b"].status == "shift"
    assert diagnosis.between[0].status == "inconclusive"
    assert "5 rows" in diagnosis["a"].overlap.sentence
    assert diagnose(Federation.of(hard_cases()["constant"]))["a"].status == "no shift found"
    alone = diagnose(Federation.of(hard_cases()["one class"]))["a"]
    assert alone.shift_type.name == "inconclusive"
    assert "two classes" in alone.shift_type.meaning


def test_names_of_columns_and_features():
    import pandas

    rng = np.random.default_rng(3)
    colour = [rng.choice(3, 300, p=p) for p in ([0.6, 0.2, 0.2], [0.1, 0.2, 0.7])]
    frames = [
        pandas.DataFrame(
            {"age": rng.normal(size=300), **{f"c_{i}": (c == i) * 1.0 for i in range(3)}}
        )
        for c in colour
    ]
    y = rng.integers(0, 2, 300)
    groups = {f"c_{i}": "colour" for i in range(3)}
    diagnosis = diagnose(Federation.of({"a": (frames[0], y, frames[1])}), features=groups)
    assert [c.name for c in diagnosis["a"].columns] == ["colour"]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [({"alpha": 0}, "alpha"), ({"smallest": 0.3}, "smallest"), ({"rows": 3}, "rows")],
)
def test_wrong_settings_are_named(federation, wrong, match):
    with pytest.raises(InputError, match=match):
        diagnose(federation, **wrong)


def test_a_looser_bar_finds_no_less(federation, diagnosis):
    loose = diagnose(federation, alpha=0.5)
    assert {c.site for c in diagnosis.shifted} <= {c.site for c in loose.shifted}
