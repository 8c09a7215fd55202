"""Recipes: TOML and back, and errors that say where and what instead."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.weights import Weighting
from fedshift.errors import InputError
from fedshift.experiments.recipe import Method, ModelSpec, RatioSpec, Recipe, recipes, seeds
from fedshift.experiments.shifts import DRAWN, SPLIT, Data
from fedshift.experiments.study import load_any
from fedshift.experiments.toml_tables import Location
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Optimizer, TopK
from fedshift.ratio.neural import Neural
from fedshift.settings import Settings

TEXT = """
title = "Digits"
seeds = "0:3"

[data]
source = "digits"
shift = "one-class-each"
train = [90, 3]
test = [55, 3]

[plan]
kind = "fedsgd"
iterations = 40
lr = 1e-3

[plan.compression]
kind = "top-k"
share = 0.1

[train]
model = {kind = "mlp", hidden = [32]}
device = "cpu"

[weighting]
clip = 200

[[method]]
name = "FedBN"
objective = "erm"
plan.norm = "local"

[[method]]
name = "neural"
ratio = {kind = "neural", divergence = "ukl"}
weighting.clip = 20

[[method]]
name = "FedAvg"
ratio = "exact"
plan = {kind = "fedavg", rounds = 7, server = {rule = "adam", lr = 0.1}}
"""


def recipe(text: str = TEXT) -> Recipe:
    return Recipe.recorded(f'name = "mine/digits"\n{text}', file="mine.toml")


def test_methods_change_the_tables() -> None:
    r = recipe()
    bn = r.settings("FedBN", 2)
    assert bn.plan == FedSGD(iterations=40, lr=1e-3, norm="local", compression=TopK(0.1), seed=2)
    assert (bn.objective, bn.seed, bn.device, bn.weighting) == (
        "erm",
        2,
        "cpu",
        Weighting(clip=200),
    )
    assert bn.model == ModelSpec("mlp", {"hidden": [32]})
    neural = r.settings("neural", 1)
    assert isinstance(neural.ratio, Neural)
    assert (neural.ratio.divergence, neural.ratio.seed) == ("ukl", 1)
    assert neural.weighting == Weighting(clip=20)
    average = r.settings("FedAvg", 0)
    # the other kind of plan keeps what all plans share
    server = Optimizer("adam", 0.1)
    assert average.plan == FedAvg(rounds=7, compression=TopK(0.1), server=server, seed=0)
    assert average.ratio == "exact"


def test_a_narrowed_recipe_stands_alone() -> None:
    r = recipe()
    for m in r.methods:
        one = r.narrow(m.name, 1)
        assert one.seeds == (1,)
        assert one.settings(m.name, 1).plan == r.settings(m.name, 1).plan
        assert Recipe.recorded(one.to_toml(), file="recipe") == one
        assert one.narrow(m.name, 1) is one


def test_model_options_reach_the_model() -> None:
    net = recipe().settings("FedBN", 0).model
    assert isinstance(net, ModelSpec)
    assert next(net((1, 8, 8), 10).parameters()).shape == (32, 64)


# -- every key of the real dataclasses is a key of recipes ---------------------------------------


@pytest.mark.parametrize(
    ("kind", "cls", "skip"),
    [("fedsgd", FedSGD, {"seed"}), ("fedavg", FedAvg, {"seed"})],
)
def test_plan_fields_are_keys(kind: str, cls: type, skip: set[str]) -> None:
    message = _error('kind = "fedsgd"\niterations = 40\nlr = 1e-3', f'kind = "{kind}"\nwrong = 1')
    assert all(
        f"{f.name}," in message or f"{f.name};" in message
        for f in dataclasses.fields(cls)
        if f.name not in skip
    )


def test_settings_fields_are_keys() -> None:
    message = _error('device = "cpu"', "wrong = 1")
    elsewhere = {"objective", "ratio", "weighting", "plan", "seed"}
    assert all(f.name in message for f in dataclasses.fields(Settings) if f.name not in elsewhere)


# -- errors --------------------------------------------------------------------------------------


def _error(old: str, new: str) -> str:
    assert old in TEXT
    with pytest.raises(InputError) as caught:
        recipe(TEXT.replace(old, new, 1))
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "place", "near"),
    [
        ("title =", "titel =", "mine.toml:", "title"),
        ("iterations", "iteratons", "mine.toml, [plan]", "iterations"),
        ("share = 0.1", "shore = 0.1", "[plan.compression]", "share"),
        ('kind = "top-k"', 'kind = "topk"', "[plan.compression]", "top-k"),
        ('kind = "fedsgd"', 'kind = "fedsdg"', "[plan]", "fedsgd"),
        ("device =", "devise =", "[train]", "device"),
        ("hidden", "hiden", "[train.model]", "hidden"),
        ('"mlp"', '"mpl"', "[train]", "mlp"),
        ("clip = 200", "clips = 200", "[weighting]", "clip"),
        ("train = [", "trian = [", "[data]", "train"),
        ("source =", "sauce =", "[data]", "source"),
        ('"digits"\nshift', '"digit"\nshift', "[data]", "digits"),
        ('"one-class-each"', '"one-class-eech"', "[data]", "one-class-each"),
        ("objective =", "objektive =", "[method.FedBN]", "objective"),
        ('"erm"', '"emr"', "[method.FedBN]", "erm"),
        ("plan.norm", "plan.nrom", "[method.FedBN.plan]", "norm"),
        ('"local"', '"lokal"', "[method.FedBN.plan]", "local"),
        ('kind = "neural"', 'kind = "neurall"', "[method.neural]", "neural"),
        ("divergence", "divergense", "[method.neural.ratio]", "divergence"),
        ('rule = "adam"', 'rule = "adm"', "[method.FedAvg.plan.server]", "adam"),
    ],
)
def test_a_wrong_word_is_met_with_the_nearest(old: str, new: str, place: str, near: str) -> None:
    message = _error(old, new)
    assert "mine.toml" in message
    assert place in message
    assert f"did you mean '{near}'?" in message


@pytest.mark.parametrize(
    ("old", "new", "need"),
    [
        ("lr = 1e-3", 'lr = "fast"', "lr must be a number; got 'fast' (text)"),
        ("iterations = 40", "iterations = 4.5", "iterations must be a whole number; got 4.5"),
        ("iterations = 40", "iterations = true", "got True (true or false)"),
        ("iterations = 40", "iterations = -1", "[plan]: FedSGD: iterations must be"),
        ("lr = 1e-3", "participation = true", "a whole number or a list, each text"),
        ("lr = 1e-3", "betas = [0.9]", "betas must be a list of 2 values"),
        ("train = [90, 3]", "train = [90]", "train must be a list of 2 values"),
        ("train = [90, 3]\n", "", "[data]: 'train' must be given"),
        ('seeds = "0:3"', 'seeds = "zero"', "seeds must be text like"),
        ('seeds = "0:3"', "seeds = [0, 0]", "seeds must differ; got [0, 0]"),
        ('seeds = "0:3"', 'seeds = "0:3,2"', "seeds must differ; got '0:3,2'"),
        ('seeds = "0:3"', 'seeds = "5:0"', "from low to high, such as '0:5'; got '5:0'"),
        ('seeds = "0:3"', "seeds = []", "at least one seed, and seeds must differ; got []"),
        ('title = "Digits"', "title = 3", "title must be text; got 3"),
        ('name = "neural"', 'name = "../x"', "the name of a folder; got '../x'"),
        ('name = "neural"', 'name = "FedBN"', "each with its own name"),
        ('ratio = "exact"', "ratio = 3", "ratio must be a name, or a table with its kind"),
        ('ratio = "exact"', "plan = 3", "TOML"),
        ("[weighting]\nclip = 200", "[weighting]\nclip = -1", "[weighting]: clip must be"),
        ("clip = 200\n", "clip = 200\n[train2]\n", "mine.toml: unknown key 'train2'"),
    ],
)
def test_a_wrong_value_says_name_need_and_got(old: str, new: str, need: str) -> None:
    assert need in _error(old, new)


def test_what_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'smoke/digits'"):
        Recipe.load("smoke/digit")
    with pytest.raises(InputError, match="cannot read recipe"):
        Recipe.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(InputError, match=r"bad\.toml must be TOML"):
        Recipe.load(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        Recipe.load(tmp_path / "bytes.toml")
    with pytest.raises(InputError, match="'data' must be given"):
        Recipe.recorded("name = 'x'", file="recipe")


def test_seeds() -> None:
    assert seeds("0:3,7") == (0, 1, 2, 7)
    for bad in ("", "a", "1:", [1.5], [True], None):
        with pytest.raises(InputError, match="seeds must be"):
            seeds(bad)


# -- --set ---------------------------------------------------------------------------------------


def test_set() -> None:
    r = recipe().changed(
        [
            "plan.iterations=5",
            "train.model=lenet",
            "method.FedAvg.plan.rounds=3",
            "plan.compression.share=0.5",
            "method.FedBN.data.seed=4",
            "seeds=4:6",
            "title=A new one",
        ]
    )
    assert (r.title, r.seeds) == ("A new one", (4, 5))
    assert r.settings("FedBN", 4).plan == FedSGD(
        iterations=5, norm="local", compression=TopK(0.5), seed=4
    )
    plan = r.settings("FedAvg", 4).plan
    assert isinstance(plan, FedAvg)
    assert (plan.rounds, plan.server) == (3, Optimizer("adam", 0.1))
    assert r.settings("FedBN", 4).model == "lenet"
    assert (r.narrow("FedBN", 4).data.seed, r.narrow("neural", 4).data.seed) == (4, None)
    other = recipe().changed(["plan.kind=fedavg", "plan.rounds=2"])
    assert isinstance(other.plan, FedAvg)
    assert other.plan.compression == TopK(0.1)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("plan.iteratons=5", r"--set, \[plan\]: unknown key 'iteratons'.*'iterations'"),
        ("plan", "--set takes KEY=VALUE"),
        ("plan..x=5", "--set takes KEY=VALUE"),
        ("method.FedBM.plan.norm=group", "did you mean 'FedBN'"),
        ("plam.lr=1", "did you mean 'plan'"),
        ("plan=5", "plan must be a table"),
    ],
)
def test_set_wrong(said: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        recipe().changed([said])


# -- round trips ---------------------------------------------------------------------------------

share = st.floats(0.01, 0.99)
size = st.integers(1, 10**6)
shared = {
    "batch_size": size,
    "participation": st.none() | size | st.lists(st.text(), min_size=1, unique=True).map(tuple),
    "client_weights": st.none() | st.dictionaries(st.text(), st.floats(0, 1e300), max_size=3),
    "norm": st.sampled_from(["averaged", "local", "group"]),
    "importance": st.sampled_from(["loss", "sampling"]),
    "compression": st.none() | st.builds(TopK, share) | st.builds(QSGD, size),
}
betas = st.tuples(share, share)
optimizers = st.builds(Optimizer, st.sampled_from(["sgd", "adamw", "yogi"]), share, share, betas)
plans: st.SearchStrategy[Any] = st.builds(
    FedSGD, iterations=size, lr=share, betas=betas, **shared
) | st.builds(FedAvg, rounds=size, prox=share, scaffold=st.booleans(), server=optimizers, **shared)
words = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,8}", fullmatch=True)
train = st.builds(
    Settings,
    model=st.sampled_from(["lenet", ModelSpec("mlp", {"hidden": [3, 4], "batch_norm": True})]),
    validation=share,
    patience=st.none() | size,
    choose=st.sampled_from(["last", "best"]),
    device=st.none() | st.text(),
    precision=st.sampled_from(["float32", "float64", "bfloat16"]),
)
methods = st.builds(
    Method,
    name=words,
    objective=st.sampled_from(["erm", "ftw", "fitw", "focus:client-1"]),
    ratio=st.sampled_from(["exact", "auto", "mlls"]).map(RatioSpec),
    plan=st.fixed_dictionaries({}, optional={"batch_size": size, "norm": st.just("group")}),
    weighting=st.fixed_dictionaries({}, optional={"clip": share}),
    data=st.fixed_dictionaries({}, optional={"seed": size, "train": st.just([9, 1])}),
)
every = st.builds(
    Recipe,
    name=st.lists(words, min_size=1, max_size=3).map("/".join),
    title=st.text(),
    description=st.text(),
    seeds=st.lists(st.integers(0, 2**40), min_size=1, unique=True, max_size=4).map(tuple),
    data=st.builds(
        Data,
        shift=st.just("one-class-each"),
        source=st.sampled_from(["digits", "cifar10"]),
        share=share,
        seed=st.none() | size,
        options=st.just({"train": [90, 3], "test": (55, 3), "clients": 4}),
    ),
    plan=plans,
    train=train,
    weighting=st.builds(Weighting, clip=st.none() | share, flatten=share),
    methods=st.lists(methods, min_size=1, max_size=3, unique_by=lambda m: m.name).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(every)
def test_recipe_to_toml_and_back_is_the_identity(r: Recipe) -> None:
    text = r.to_toml()
    again = Recipe.recorded(text, file="recipe")
    assert again == r
    assert again.to_toml() == text


# -- shipped -------------------------------------------------------------------------------------

#: all but the studies
SHIPPED = {name: r for name in recipes() if isinstance(r := load_any(name), Recipe)}


def test_there_are_recipes() -> None:
    names = set(recipes())
    paper = ("fmnist-five", "fmnist-two", "cifar-five", "cifar-hundred", "colored-mnist")
    assert {f"paper/{n}" for n in paper} <= names
    assert {"smoke/digits", "smoke/digits-fedavg", "smoke/gaussian"} <= names


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipe_reads_and_writes(name: str) -> None:
    r = SHIPPED[name]
    assert r.name == name
    assert r.title
    assert Recipe.recorded(r.to_toml(), file="recipe") == r
    for m in r.methods:
        assert r.settings(m.name, r.seeds[0]).objective == m.objective


def test_paper_recipes_have_the_papers_settings() -> None:
    paper = {name: r for name, r in SHIPPED.items() if name.startswith("paper/")}
    assert len(paper) == 5
    for name, r in paper.items():
        cifar = "cifar" in name
        assert isinstance(r.plan, FedSGD)
        assert (r.plan.batch_size, r.plan.optimizer) == (64, "adam")
        assert (r.plan.lr, r.plan.weight_decay) == ((1e-4, 1e-4) if cifar else (1e-3, 0.0))
        assert r.train.model == ("resnet18" if cifar else "lenet")
        assert len(r.seeds) == (3 if cifar else 5)
        assert r.weighting == Weighting()
        for m in r.methods:  # equal budgets and the last iterate; what is ours does with less
            told, ours = (
                r.settings(m.name, 0),
                {"mixup", "pooling", "additions"} & set(m.name.split("-")),
            )
            spent = told.plan.n_rounds * told.plan.n_steps
            assert spent <= r.plan.iterations
            assert ours or (spent == r.plan.iterations and told.choose == "last")
    assert Recipe.load("paper/cifar-hundred").plan.participation == 5


# -- data ----------------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "colour-flip": {"train_flip": [0.5, 0.2], "test_flip": [0.2, 0.8]},
    "counts": {"train": [[9, 1], [1, 9]], "test": [[1, 5], [5, 1]], "short": "reuse"},
    "dirichlet": {"clients": 3, "alpha": 1, "train_rows": 50, "test_rows": [20, 20, 10]},
    "labels": {"table": "five-clients", "short": "shrink"},
    "one-class-each": {"train": [90, 3], "test": [55, 3]},
    "tilt": {"train_slopes": [1.0, -1.0], "test_slopes": [-1, 1], "direction": 20},
    "gaussian": {
        "train_mean": [[0.0], [1.0]],
        "test_mean": [[1.0], [0.0]],
        "train_rows": [10, 20],
        "outcome": {"kind": "polynomial", "coef": [0, -1, 0, 1]},
    },
    "mean-shift": {"d": 3, "size": 2, "outcome": {"kind": "linear", "coef": [1, 2, 3]}},
}


@pytest.mark.parametrize("shift", [*SPLIT, *DRAWN])
def test_every_shift_can_be_spelled(shift: str) -> None:
    source = {"source": "digits", "share": 0.9} if shift in SPLIT else {}
    options = dict(OPTIONS[shift])
    if shift == "one-class-each":
        source["share"] = 1.0
    if shift == "counts":
        options |= {s: [[*row, *[1] * 8] for row in options[s]] for s in ("train", "test")}
    r = Recipe.of(
        {"name": "x", "data": {"shift": shift, **source, **options}, "method": [{"name": "ERM"}]},
        Location(),
    )
    assert Recipe.recorded(r.to_toml(), file="recipe") == r
    images = r.data.load()
    one, again, other = (r.data.federation(images, seed=s) for s in (0, 0, 1))
    assert one.exact_log_ratio("client-1").shape == one[0].y.shape
    assert (one[0].x == again[0].x).all()
    assert one[0].x.shape != other[0].x.shape or (one[0].x != other[0].x).any()
    pinned = dataclasses.replace(r.data, seed=0).federation(images, seed=1)
    assert (pinned[0].x == one[0].x).all()


def test_a_share_keeps_every_class_of_both_parts() -> None:
    data = Data(shift="one-class-each", source="digits", share=0.1)
    images = data.load()
    assert images is not None
    for _, y in (images.train, images.test):
        assert set(y.tolist()) == set(range(10))
    assert 100 < images.n_train < 115


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ({"shift": "mean-shift", "source": "digits"}, "draws its own rows"),
        ({"shift": "labels", "table": "five-clients"}, "source must be one of"),
        ({"shift": "labels", "source": "digits", "table": "5"}, "paper table must be"),
        (
            {"shift": "labels", "source": "digits", "share": 0, "table": "two-clients"},
            "share must be in",
        ),
        ({"shift": "mean-shift", "outcome": {"kind": "cubic"}}, "outcome must be one of"),
        ({"shift": "mean-shift", "outcome": {"kind": "linear", "koef": [1]}}, "'coef'"),
        ({"shift": "dirichlet", "source": "digits"}, "'clients', 'alpha'.* must be given"),
    ],
)
def test_data_wrong(table: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        Recipe.of({"name": "x", "data": table, "method": [{"name": "ERM"}]}, Location())


def with_ratio(ratio: str) -> Recipe:
    return recipe(TEXT.replace('ratio = "exact"', f"ratio = {ratio}"))


@pytest.mark.parametrize("kind", ["federated-mlls", "federated-auto", "multi-source", "neural"])
def test_a_ratio_has_a_model_with_options(kind: str) -> None:
    """A table of a model is a model, wherever it stands."""
    r = with_ratio(f"{{kind = '{kind}', model = {{kind = 'mlp', hidden = [7]}}}}")
    made = r.settings("FedAvg", 0).ratio.model((8, 8), 4)
    assert next(made.parameters()).shape == (7, 64)
    assert Recipe.recorded(r.to_toml(), file="recipe") == r
    bare = with_ratio(f"{{kind = '{kind}', model = 'mlp'}}").settings("FedAvg", 0).ratio.model
    assert bare == "mlp" if kind.startswith("federated") else bare((8, 8), 4) is not None


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("{kind = 'mpl'}", r"\[method.FedAvg.ratio\]: model must be .*'mlp'"),
        ("{kind = 'mlp', hiden = [7]}", r"unknown key 'hiden'.*'hidden'"),
        ("3", "model must be a name, or a table with its kind"),
    ],
)
def test_a_wrong_model_of_a_ratio_is_met_before_anything_runs(model: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        with_ratio(f"{{kind = 'federated-mlls', model = {model}}}")


def test_a_ratio_without_a_model_refuses_one() -> None:
    with pytest.raises(InputError, match="unknown key 'model'"):
        with_ratio("{kind = 'ulsif', model = 'mlp'}")
