"""What may be said about tables."""

from __future__ import annotations

import pytest

from fedshift.data.tables import Sites, TableSettings
from fedshift.errors import InputError

TOML = """
label = "num"
positive = ">0"
categorical = ["cp", " thal "]
missing = ["-9", 999]
test_share = 0.25
"""


def test_file_and_keywords(folder) -> None:
    root = folder({"fedshift.toml": TOML})
    settings = TableSettings.read(root, {"test_share": 0.5, "label": None})
    assert (settings.label, settings.positive, settings.test_share) == ("num", ">0", 0.5)
    assert settings.categorical == ("cp", "thal")
    assert settings.markers("anything") == ("-9", "999")
    assert TableSettings.of(settings.to_dict()) == settings


def test_missing_by_column() -> None:
    settings = TableSettings.of({"missing": {"*": "-9", "chol": [0]}})
    assert settings.markers("chol") == ("-9", "0")
    assert settings.markers("age") == ("-9",)
    assert TableSettings.of(settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lable": "y"}, "unknown key 'lable'.*did you mean 'label'"),
        ({"label": 3}, "label= must be the name of a column.*got 3"),
        ({"label": " "}, "label= must be the name"),
        ({"drop": [1]}, "drop= must be a list of texts"),
        ({"names": ["a", "a"]}, "names= must not repeat a name"),
        ({"task": "classify"}, "did you mean 'classification'"),
        ({"header": "yes"}, "header= must be true or false"),
        ({"test_share": 1}, "test_share= must be a share between 0 and 1"),
        ({"seed": -1}, "seed= must be a whole number"),
        ({"positive": []}, "positive= must be a class"),
        ({"missing": [True]}, "missing= must be a list of texts"),
        ({"label": "y", "drop": ["y"]}, "one role; got 'y' as label= and as drop="),
        ({"numeric": ["a"], "categorical": ["a"]}, "one role; got 'a'"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        TableSettings.of(given)


def test_errors_name_the_settings_file(folder) -> None:
    for content, words in (
        ('labl = "y"', r"fedshift.toml: unknown key 'labl'"),
        ("label = ", "fedshift.toml must be TOML"),
        (b"\xff\xfe", "fedshift.toml must be TOML"),
    ):
        root = folder({"fedshift.toml": content})
        with pytest.raises(InputError, match=words):
            TableSettings.read(root, {})


def test_a_column_is_named_exactly_as_in_a_file(folder) -> None:
    rows = {"Age": [1, 2, 3, 4], "Sick": [0, 1, 0, 1]}
    for wrong in ("sick", "sik"):
        with pytest.raises(
            InputError, match=rf"label= must name columns.*got '{wrong}'; did you mean 'Sick'"
        ):
            Sites.of({"a": rows}, label=wrong)
    other = {"age": [1, 2, 3, 4], "SICK": [0, 1, 0, 1]}
    assert Sites.of({"a": rows, "b": rows, "c": other}, label="SICK").schema.target.name == "Sick"
    with pytest.raises(InputError, match="missing= must name columns"):
        Sites.of({"a": rows}, label="Sick", missing={"Agee": [0]})
