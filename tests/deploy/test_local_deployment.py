"""A deployment's folder: looked at first, written to afterwards."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedshift.deploy import local_deployment
from fedshift.deploy.agreement import Agreement
from fedshift.deploy.local_deployment import deploy_local, write_site
from fedshift.deploy.site_file import policy_of, read_site
from fedshift.errors import InputError
from fedshift.experiments.recipe import Recipe
from fedshift.privacy.policy import Privacy


@pytest.fixture(scope="module")
def agreement() -> Agreement:
    return Agreement.of(Recipe.load("smoke/flower"), method="ERM", clients=2)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would have been run."""
    runs: list[dict[str, Any]] = []
    monkeypatch.setattr(local_deployment, "run_local", lambda app, **more: runs.append(more))
    return runs


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_site_keeps_its_policy(
    agreement: Agreement, tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    own = Privacy(disclosure_level=0, noise=4.0, min_rows=50)
    write_site(tmp_path / "sites" / "client-1", "client-1", tmp_path / "task.toml", own)
    deploy_local(agreement, tmp_path)
    paths = [started[0]["node_config"][name]["site"] for name in ("client-1", "client-2")]
    assert [policy_of(read_site(path)) for path in paths] == [own, Privacy(disclosure_level=0)]
    deploy_local(agreement, tmp_path)  # goes on
    assert policy_of(read_site(paths[0])) == own
    before = tree(tmp_path)
    with pytest.raises(InputError, match=r"client-1/site\.toml has the policy .*noise 4"):
        deploy_local(agreement, tmp_path, privacy=Privacy(disclosure_level=0))
    assert tree(tmp_path) == before


def test_what_an_owner_wrote_stays_as_it_is(
    agreement: Agreement, tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    site = tmp_path / "sites" / "client-1" / "site.toml"
    site.parent.mkdir(parents=True)
    text = (
        '# my ward\nclient = "client-1"\ntask = "../../task.toml"\nstate = "mine"\n'
        'rows = "rows.npz"\n[privacy]\ndisclosure_level = 0\n'
    )
    site.write_text(text)
    task = f"# agreed in May\n{agreement.to_toml()}"
    (tmp_path / "task.toml").write_text(task)
    (tmp_path / "run.toml").write_text("# my notes")
    for warm in (True, False):
        deploy_local(agreement, tmp_path, warm=warm, data_dir=str(tmp_path))
        assert site.read_text() == text
        assert (tmp_path / "task.toml").read_text() == task
        assert (tmp_path / "run.toml").read_text() == "# my notes"
        node = read_site(started[-1]["node_config"]["client-1"]["site"])
        assert ("socket" in node) is warm
        mine = {"state": "mine", "rows": "rows.npz"}
        assert {k: Path(node[k]) for k in mine} == {k: site.parent / v for k, v in mine.items()}
    site.write_text(text.replace('"client-1"', '"client-2"'))
    with pytest.raises(InputError, match="must be of client 'client-1'; got 'client-2'"):
        deploy_local(agreement, tmp_path)


def test_a_folder_of_another_task_is_left_as_it_is(
    agreement: Agreement, tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    deploy_local(agreement, tmp_path)
    before = tree(tmp_path)
    other = replace(agreement, job=replace(agreement.job, tries=7))
    with pytest.raises(
        InputError, match=rf"{agreement.job.digest}; got a .* digest {other.job.digest}"
    ):
        deploy_local(other, tmp_path)
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "result.json").write_text("{}")
    with pytest.raises(InputError, match="already holds a finished run"):
        deploy_local(agreement, tmp_path, warm=False)
    assert {n: b for n, b in tree(tmp_path).items() if "result" not in n} == before
    assert len(started) == 1


def test_names_stay_in_the_folder(
    agreement: Agreement, tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    names = ("../../escaped", "client-2")
    evil = replace(agreement, job=replace(agreement.job, clients=names))
    with pytest.raises(InputError, match=re.escape("'../../escaped'")):
        deploy_local(evil, tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
