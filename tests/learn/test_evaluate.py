"""Per-client evaluation against known values, sklearn and slow references."""

from __future__ import annotations

import builtins
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics
from torch import Tensor, nn

from fedshift.core.weights import Weighting
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError
from fedshift.learn.evaluate import (
    MANY,
    ClientScore,
    Evaluation,
    evaluate,
    mean_interval,
    predict,
)
from fedshift.learn.weighted_risk import importance_weighted_risk


def federation(classes: int = 3, sizes: tuple[int, ...] = (40, 7, 25)) -> Federation:
    rng = np.random.default_rng(0)
    clients = []
    for k, m in enumerate(sizes):
        y = rng.integers(0, classes, m) if classes else rng.normal(size=m)
        clients.append(
            ClientData.of(f"c{k}", rng.normal(size=(5, 4)), y[:5], rng.normal(size=(m, 4)), y)
        )
    return Federation(tuple(clients))


def linear(out: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    model = nn.Linear(4, out, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=dtype))
    return model


def score(client: str, accuracy: float, n: int) -> ClientScore:
    low, high = stats.binomtest(round(accuracy * n), n).proportion_ci(method="wilson")
    return ClientScore(client=client, n=n, accuracy=accuracy, low=low, high=high, loss=1.0)


def test_mean_interval_covers_and_equals_resampling_in_a_loop() -> None:
    rng = np.random.default_rng(0)
    covered = [
        low <= 1.0 <= high
        for low, high in (mean_interval(rng.gamma(2, 0.5, 60)) for _ in range(200))
    ]
    assert 0.88 <= np.mean(covered) <= 0.99
    v = rng.exponential(size=400)
    rng = np.random.default_rng(0)
    means = [v[rng.integers(0, 400, 400)].mean() for _ in range(2000)]
    assert mean_interval(v) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=1e-12)
    assert mean_interval(v) == mean_interval(v)


def test_mean_interval_of_one_value_and_of_many() -> None:
    assert mean_interval(np.array([2.0])) == (2.0, 2.0)
    v = np.random.default_rng(0).normal(3, 2, MANY)
    half = 1.96 * 2 / MANY**0.5
    assert mean_interval(v) == pytest.approx((3 - half, 3 + half), abs=half)
    below = mean_interval(v[:-1])  # the two rules meet
    assert below == pytest.approx(mean_interval(v), abs=half / 10)


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_equal_sklearn(classes: int) -> None:
    fed, model = federation(classes), linear(classes)
    got = evaluate(model, fed, batch_size=8)
    assert [r.client for r in got.rows] == ["c0", "c1", "c2"]
    for row, c in zip(got.rows, fed, strict=True):
        with torch.no_grad():
            logits = model(torch.as_tensor(c.test_x, dtype=torch.float32)).double()
        p, y = torch.softmax(logits, 1).numpy(), c.test_y
        assert y is not None
        assert row.n == len(y)
        assert row.accuracy == metrics.accuracy_score(y, p.argmax(1))
        assert row.loss == pytest.approx(metrics.log_loss(y, p, labels=range(classes)), rel=1e-6)
        known = stats.binomtest((p.argmax(1) == y).sum(), len(y)).proportion_ci(method="wilson")
        assert (row.low, row.high) == (known.low, known.high)
        assert row.constant == np.mean(y == np.bincount(c.y).argmax())
        if classes == 2:
            assert row.auc == pytest.approx(metrics.roc_auc_score(y, logits[:, 1] - logits[:, 0]))
            assert row.f1 == pytest.approx(metrics.f1_score(y, p.argmax(1)))
        else:
            assert row.auc == pytest.approx(metrics.roc_auc_score(y, p, multi_class="ovr"))
            assert row.f1 is None
        assert row.mse is row.mae is row.r2 is row.ess is None
    assert [r.auc for r in evaluate(model, fed, auc=False).rows] == [None] * 3


def test_numbers_equal_sklearn() -> None:
    fed, model = federation(0), linear(1)
    got = evaluate(model, fed, loss="squared")
    for row, c in zip(got.rows, fed, strict=True):
        with torch.no_grad():
            guess = model(torch.as_tensor(c.test_x, dtype=torch.float32))[:, 0].numpy()
        assert row.mse == pytest.approx(metrics.mean_squared_error(c.test_y, guess), rel=1e-6)
        assert row.loss == pytest.approx(row.value / 2)
        assert row.r2 == pytest.approx(metrics.r2_score(c.test_y, guess), rel=1e-5)
        assert row.mae == pytest.approx(metrics.mean_absolute_error(c.test_y, guess), rel=1e-5)
        assert row.constant == pytest.approx(np.mean((c.test_y - c.y.mean()) ** 2))
        assert row.low < row.value < row.high
        assert row.accuracy is None
    assert got.worst.value == got.scores.max()  # a large error is bad
    assert got.best.value == got.scores.min()
    assert "mean mse" in repr(got)


class Batched(nn.Module):
    """Depends on its mode, as BatchNorm and dropout do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.fc = nn.BatchNorm1d(4), nn.Dropout(0.5), linear(3)
        self.largest = 0

    def forward(self, x: Tensor) -> Tensor:
        self.largest = max(self.largest, len(x))
        out: Tensor = self.fc(self.drop(self.norm(x)))
        return out


def test_batches_do_not_matter_and_the_model_is_left_as_it_was() -> None:
    fed, model = federation(), Batched().train()
    model.drop.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    whole = evaluate(model, fed, batch_size=1000)
    model.largest = 0
    parts = evaluate(model, fed, batch_size=3)
    assert model.largest == 3
    for a, b in zip(whole.rows, parts.rows, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert (a.n, a.accuracy, a.low) == (b.n, b.accuracy, b.low)
    assert evaluate(model, fed, batch_size=3) == parts  # deterministic
    assert model.training
    assert not model.drop.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_model_for_every_client_and_the_type_of_its_parameters() -> None:
    fed = federation()
    models = {c.name: linear(3, torch.float64) for c in fed}
    with torch.no_grad():
        models["c1"].weight.zero_()
        models["c1"].bias.copy_(torch.tensor([0.0, 9.0, 0.0]))
    got = evaluate(lambda name: models[name], fed)
    shared = evaluate(models["c0"], fed)
    assert got["c0"] == shared["c0"]
    assert got["c1"].accuracy == np.mean(fed["c1"].test_y == 1)
    assert predict(models["c0"], fed["c0"].test_x).dtype == torch.float64
    with pytest.raises(InputError, match="one of c0, c1, c2; got 'co'"):
        got["co"]


def test_client_order_is_irrelevant_and_evaluations_add_up() -> None:
    fed, model = federation(), linear(3)
    whole = evaluate(model, fed)
    back = evaluate(model, Federation(fed.clients[::-1]))
    assert back.rows == whole.rows[::-1]
    assert (back.mean, back.worst, back.spread) == pytest.approx(
        (whole.mean, whole.worst, whole.spread)
    )
    ends = [evaluate(model, Federation(fed.clients[a])) for a in (slice(0, 1), slice(1, 3))]
    assert ends[0] + ends[1] == whole
    with pytest.raises(InputError, match="once"):
        ends[0] + ends[0]


def test_ess_of_the_training_weights() -> None:
    fed = federation()
    rng = np.random.default_rng(0)
    weights = {c.name: Weighting()(rng.normal(size=5)) for c in fed}
    got = evaluate(linear(3), fed, weights=weights)
    assert [r.ess for r in got.rows] == pytest.approx([w.ess for w in weights.values()])
    # a client that was not trained on has none
    got = evaluate(linear(3), fed, weights={"c1": np.ones(5)})
    assert [r.ess for r in got.rows] == [None, 5.0, None]


def test_summary_known_by_hand() -> None:
    e = Evaluation((score("a", 0.8, 100), score("b", 0.9, 100), score("c", 0.7, 100)))
    assert e.mean == pytest.approx(0.8)
    assert e.spread == pytest.approx((0.02 / 3) ** 0.5)
    assert (e.worst.client, e.best.client) == ("c", "b")
    low, high = e.interval
    se = np.sqrt(0.8 * 0.2 + 0.9 * 0.1 + 0.7 * 0.3) / 10 / 3
    assert (high - low) / 2 == pytest.approx(1.96 * se, rel=0.03)
    assert repr(e) == (
        "Evaluation(mean accuracy .800 [.750, .838] over 3 clients, worst .700 (c), best .900 (b))"
    )
    one = Evaluation(e.rows[:1])
    assert one.interval == pytest.approx((one.rows[0].low, one.rows[0].high))
    sure = Evaluation((score("a", 1.0, 50), score("b", 1.0, 50)))
    assert sure.interval[0] < 0.97  # all right is not certain
    assert sure.interval[1] == 1


def test_the_summary_names_further_scores() -> None:
    assert re.search(
        r"; mean constant \.\d{3}, AUROC \.\d{3}, log loss \d",
        repr(evaluate(linear(2), federation(2))),
    )
    assert "; mean constant " in (text := repr(evaluate(linear(1), federation(0), loss="squared")))
    assert ", R² " in text
    assert ", MAE " in text


def test_interval_of_the_mean_covers() -> None:
    rng = np.random.default_rng(0)
    p, n = np.array([0.6, 0.9, 0.97, 0.3]), np.array([200, 60, 30, 20])
    hits = rng.binomial(n, p, (1500, 4))
    covered = []
    for h in hits:
        e = Evaluation(tuple(score(str(k), h[k] / n[k], int(n[k])) for k in range(4)))
        covered.append(e.interval[0] <= p.mean() <= e.interval[1])
    assert 0.935 <= np.mean(covered) <= 0.975


def test_records_and_frame() -> None:
    e = evaluate(linear(2), federation(2), weights={f"c{k}": np.ones(5) for k in range(3)})
    records = json.loads(json.dumps(e.to_records(), allow_nan=False))
    assert list(records[0]) == [
        "client",
        "n",
        "accuracy",
        "low",
        "high",
        "loss",
        "constant",
        "auc",
        "f1",
        "ess",
    ]
    assert Evaluation.from_records(records) == e
    frame = e.to_frame()
    assert list(frame["client"]) == ["c0", "c1", "c2"]
    assert frame["accuracy"].mean() == pytest.approx(e.mean)
    assert list(evaluate(linear(1), federation(0), loss="squared").to_frame()) == [
        "client", "n", "mse", "low", "high", "loss", "constant", "mae", "r2"
    ]  # fmt: skip


def test_without_pandas_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    e = Evaluation((score("a", 0.5, 4),))
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"-e '\.\[tables\]'"):
        e.to_frame()


def _with(c: ClientData, **changes: Any) -> Federation:
    parts = {k: getattr(c, k) for k in ("name", "x", "y", "test_x", "test_y")}
    return Federation((ClientData(**(parts | changes)),))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"test_y": None}, "'c1' has no test labels"),
        ({"test_y": np.full(7, 3)}, "'c1': labels must be whole numbers from 0 to 2"),
        ({"test_y": np.full(7, -1)}, "'c1': labels"),
        ({"test_y": np.zeros(7)}, "'c1': labels"),
        ({"test_y": np.array(list("abcabca"))}, "encode classes"),
        ({"test_y": np.zeros(0, int), "test_x": np.zeros((0, 4))}, "'c1' must have a test row"),
        ({"test_x": np.full((7, 4), 1e300)}, "'c1': the model's scores must be finite.*row 0"),
    ],
)
def test_errors_name_the_client(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        evaluate(linear(3), _with(federation()["c1"], **changes))


def test_scores_that_do_not_fit_the_loss() -> None:
    fed = federation()
    with pytest.raises(InputError, match="did you mean 'squared'"):
        evaluate(linear(3), fed, loss="sqared")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="take loss='squared'"):
        evaluate(linear(1), fed)
    with pytest.raises(InputError, match="one prediction per row"):
        evaluate(linear(2), fed, loss="squared")
    with pytest.raises(InputError, match="batch_size"):
        evaluate(linear(3), fed, batch_size=0)


def test_arrays_that_must_not_be_written_to() -> None:
    c = federation()["c1"]
    assert c.test_y is not None
    x, y = c.test_x.copy(), c.test_y.copy()
    x.flags.writeable = y.flags.writeable = False
    assert evaluate(linear(3), _with(c, test_x=x, test_y=y))["c1"].n == 7


def test_one_class_and_nothing_positive_have_no_auc_or_f1() -> None:
    model = linear(2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([5.0, 0.0]))
    row = evaluate(model, _with(federation(2)["c1"], test_y=np.zeros(7, int))).rows[0]
    assert (row.accuracy, row.auc, row.f1) == (1.0, None, None)
    one_of_three = evaluate(linear(3), _with(federation(3)["c1"], test_y=np.full(7, 2)))
    assert one_of_three.rows[0].auc is None
    two_of_three = evaluate(linear(3), _with(federation(3)["c1"], test_y=np.arange(7) % 2))
    assert 0 <= (two_of_three.rows[0].auc or -1.0) <= 1
    flat = evaluate(linear(1), _with(federation(0)["c1"], test_y=np.ones(7)), loss="squared")
    assert flat.rows[0].r2 is None


# -- importance-weighted risk ----------------------------------------------------------------


def rows(n: int, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.integers(0, 3, n), rng.exponential(size=n)


def test_unit_weights_give_the_plain_mean_and_its_error() -> None:
    s, y, _ = rows(500)
    risk = importance_weighted_risk(s, y, np.ones(500))
    losses = -np.log(np.take_along_axis(np.exp(s) / np.exp(s).sum(1, keepdims=True), y[:, None], 1))
    assert risk.loss == pytest.approx(losses.mean())
    assert risk.loss_error == pytest.approx(losses.std() / 500**0.5)
    right = s.argmax(1) == y
    assert risk.accuracy == pytest.approx(right.mean())
    assert risk.accuracy_error == pytest.approx(right.std() / 500**0.5)
    assert risk.ess == pytest.approx(500)


def test_integer_weights_are_repeated_rows_and_scale_is_forgotten() -> None:
    s, y, w = rows(60)
    w = np.round(w * 3).astype(int)
    once = importance_weighted_risk(s, y, w)
    again = importance_weighted_risk(s.repeat(w, 0), y.repeat(w), np.ones(w.sum()))
    assert (once.loss, once.accuracy) == pytest.approx((again.loss, again.accuracy))
    scaled = importance_weighted_risk(torch.as_tensor(s), torch.as_tensor(y), 7.0 * w)
    for figure in ("loss", "loss_error", "accuracy", "accuracy_error", "ess"):
        assert getattr(scaled, figure) == pytest.approx(getattr(once, figure))


def test_clients_add_up_as_the_objective_weighs_them() -> None:
    parts = [rows(n, seed=n) for n in (30, 200, 80)]
    share = (1.0, 0.5, 2.0)
    risks = [
        importance_weighted_risk(s, y, w, share=c)
        for (s, y, w), c in zip(parts, share, strict=True)
    ]
    whole = risks[0] + risks[1] + risks[2]
    s, y = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
    v = np.concatenate([c * w / len(w) for (_, _, w), c in zip(parts, share, strict=True)])
    p = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    losses = -np.log(p[np.arange(len(y)), y])
    mean = np.average(losses, weights=v)
    assert whole.n == 310
    assert whole.loss == pytest.approx(mean)
    assert whole.loss_error == pytest.approx(np.sqrt((v**2 * (losses - mean) ** 2).sum()) / v.sum())
    assert whole.accuracy == pytest.approx(np.average(s.argmax(1) == y, weights=v))
    # every client counts by its mean weight, whatever its number of rows
    twice = importance_weighted_risk(*(np.concatenate([a, a]) for a in parts[0]))
    assert (twice + risks[1]).loss == pytest.approx((risks[0] + risks[1]).loss)


def test_it_is_the_test_risk_under_shift() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=4000)  # N(0, 1) in training, N(1, 1) in use: the log ratio is x − ½
    risk = importance_weighted_risk(np.tanh(x), np.zeros(4000), np.exp(x - 0.5), loss="squared")
    truth = stats.norm.expect(lambda z: np.tanh(z) ** 2 / 2, loc=1)
    assert abs(risk.loss - truth) < 3 * risk.loss_error < truth / 10
    unweighted = importance_weighted_risk(np.tanh(x), np.zeros(4000), np.ones(4000), loss="squared")
    assert abs(unweighted.loss - truth) > 10 * unweighted.loss_error
    assert risk.accuracy is risk.accuracy_error is None
    assert repr(risk).startswith("WeightedRisk(loss")
    assert "accuracy" not in repr(risk)


def test_the_standard_error_is_right() -> None:
    def estimate(seed: int) -> tuple[float, float]:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=400)
        r = importance_weighted_risk(x, np.sin(3 * x), np.exp(0.5 * x - 0.125), loss="squared")
        return r.loss, r.loss_error

    losses, errors = np.array([estimate(i) for i in range(400)]).T
    assert errors.mean() == pytest.approx(losses.std(), rel=0.15)


@pytest.mark.parametrize(
    "weight", [np.ones(4), -np.ones(5), np.full(5, np.nan), np.zeros(5), np.ones((5, 1))]
)
def test_bad_weights(weight: Any) -> None:
    with pytest.raises(InputError, match="weight must"):
        importance_weighted_risk(np.zeros((5, 2)), np.zeros(5, int), weight)
