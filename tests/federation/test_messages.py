"""Messages: what travels, what is refused, and that nothing else happens."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.federation.messages import (
    DTYPES,
    LONGEST,
    PHASES,
    AnsweredNonces,
    ExpectedReplies,
    Header,
    Message,
    MessageError,
    digest,
)

HEAD = Header("run-abc", "train.model", 3)
ODD: list[Any] = [
    *(None, True, -1, 0, 2.5, 10**30, "", "x", [], {}, [[]], {"a": 1}, float("nan")),
    *([1, "a"], ["f", 1], [10**20], [-1], [2, 3], "f4", "float32", "object", "ab" * 16),
]


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    out = {d: rng.integers(0, 2, (2, 3)).astype(d) for d in DTYPES}
    out |= {
        "scalar": np.array(2.5),
        "none": np.zeros((0, 4), dtype=np.float32),
        "columns": np.asfortranarray(rng.normal(size=(3, 2))),
        "steps": rng.normal(size=(6, 4))[::2, ::-1],
        "foreign": np.array([1.5, -2.0], dtype=">f8"),
        "special": np.array([np.nan, np.inf, -0.0, 5e-324]),
    }
    return out


def table(**changes: Any) -> dict[str, Any]:
    head = [HEAD.run, HEAD.phase, HEAD.round, HEAD.nonce]
    return {"header": head, "facts": {}, "error": "", "arrays": {}, **changes}


def spelled(what: Any, tail: bytes = b"", magic: bytes = b"fsm1") -> bytes:
    text = json.dumps(what).encode()
    return struct.pack("<4sI", magic, len(text)) + text + tail


def test_every_type_and_shape_comes_back() -> None:
    facts = {"i": 3, "f": 0.1, "t": "ä", "b": True, "l": [1.5, 2.5], "e": [], "s": ["a", "b"]}
    sent = Message(HEAD, arrays(), facts, "why")  # type: ignore[arg-type]
    got = Message.decode(sent.encode())
    assert (got.header, got.facts, got.error) == (HEAD, facts, "why")
    assert got.size == sent.size > 0
    assert list(got.arrays) == list(sent.arrays)
    for name, a in sent.arrays.items():
        b = got.arrays[name]
        assert b.shape == a.shape
        assert b.dtype == a.dtype.newbyteorder("=")
        np.testing.assert_array_equal(b, a)
    assert np.signbit(got.arrays["special"][2])


def test_an_answer_bears_the_header_of_its_question() -> None:
    reply = Message(HEAD).reply({"a": np.ones(2)}, {"n": 1}, error="no")
    assert reply.header is HEAD
    assert (reply.size, dict(reply.facts), reply.error) == (16, {"n": 1}, "no")


# -- bytes that are no message -------------------------------------------------------------------


def decoded(data: bytes) -> None:
    """A message, or MessageError: nothing else may be raised."""
    try:
        got = Message.decode(data)
    except MessageError:
        return
    assert isinstance(got.header.run, str)
    assert got.header.phase in PHASES
    got.encode()
    for value in got.facts.values():
        assert isinstance(value, bool | int | float | str | list)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes(data: bytes) -> None:
    decoded(data)
    decoded(b"fsm1" + data)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_message_with_changed_bytes(data: Any) -> None:
    whole = bytearray(Message(HEAD, arrays(), {"n": 1, "t": ["x"]}).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(whole) - 1, 900)))
        whole[at] = data.draw(st.integers(0, 255))
    decoded(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    decoded(bytes(whole))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_table_that_says_odd_things(data: Any) -> None:
    value = st.sampled_from(ODD)
    pairs = st.tuples(st.sampled_from([*DTYPES[:3], "object", 7, None]), value).map(list)
    named = st.dictionaries(st.sampled_from("abc"), st.one_of(pairs, value), max_size=2)
    what = table(
        header=data.draw(
            st.one_of(
                value,
                st.tuples(
                    st.sampled_from(["run", 5, None]),
                    st.sampled_from([*PHASES, "x", 3, []]),
                    st.one_of(st.integers(0, 9), value),
                    st.one_of(st.just(HEAD.nonce), value),
                ).map(list),
            )
        ),
        facts=data.draw(st.one_of(value, st.dictionaries(st.sampled_from("ab"), value))),
        error=data.draw(st.one_of(st.just(""), value)),
        arrays=data.draw(st.one_of(value, named)),
    )
    for name in data.draw(st.lists(st.sampled_from(sorted(what)), max_size=1)):
        del what[name]
    decoded(spelled(what, data.draw(st.binary(max_size=12))))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "unpack"),
        (spelled(table(), magic=b"fsm0"), "first bytes"),
        (spelled(table(), b"x"), "1 bytes too many"),
        (spelled(table(arrays={"a": ["float32", [2]]}), b"1234"), "buffer"),
        (spelled(table(arrays={"a": ["float32", [1 << 60, 1 << 60]]})), "not a valid message"),
        (spelled(table(arrays={"a": ["object", [1]]}), b"12345678"), "type 'object'"),
        (spelled(table(facts={"a": {"b": 1}})), "fact 'a'"),
        (spelled(table(facts=[1])), "facts must be a mapping"),
        (spelled(table(error=5)), "error a text"),
        (spelled(table(facts={"a": "x" * (LONGEST + 1)})), "at most"),
        (b"fsm1" + struct.pack("<I", 200_000) + b"[" * 200_000, "not a valid message"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, why: str) -> None:
    with pytest.raises(MessageError, match=why):
        Message.decode(data)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"phase": "train.nothing"}, "phase"),
        ({"phase": ["train.model"]}, "phase"),
        ({"round": -1}, "round"),
        ({"round": True}, "round"),
        ({"round": 1.0}, "round"),
        ({"round": 1 << 70}, "round"),
        ({"nonce": "xyz"}, "nonce"),
        ({"nonce": 5}, "nonce"),
        ({"run": b"run"}, "run"),
    ],
)
def test_headers_are_checked(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(MessageError, match=why):
        Header(**{"run": "run", "phase": "train.model", "round": 0, **changes})


@pytest.mark.parametrize("value", [b"bytes", None, [1, "a"], [[1]], {"a": 1}, np.float64(1)])
def test_facts_are_plain(value: Any) -> None:
    with pytest.raises(MessageError, match="fact 'a'"):
        Message(HEAD, {}, {"a": value})


def test_arrays_of_other_types_are_refused() -> None:
    for odd in (np.array(["a"]), np.array([object()]), np.zeros(2, dtype=complex)):
        with pytest.raises(MessageError, match="must be of type bool"):
            Message(HEAD, {"a": odd})


# -- reading -------------------------------------------------------------------------------------


def test_facts_and_arrays_are_read_by_kind() -> None:
    m = Message(HEAD, {"a": np.ones((2, 3)), "n": np.array([1, 2])}, {"i": 1, "t": "x"})
    assert m.fact("i", int) == 1
    assert isinstance(m.fact("i", float), float)
    assert m.array("a", (2, 3)).shape == (2, 3)
    assert m.array("n", kind="i").tolist() == [1, 2]
    for name, kind in (("t", int), ("nothing", str), ("i", bool)):
        with pytest.raises(MessageError, match=f"{name} must be"):
            m.fact(name, kind)
    for bad, why in (
        (lambda: m.array("b"), "missing"),
        (lambda: m.array("a", (3, 2)), "shape"),
        (lambda: m.array("n"), "must hold floats"),
        (lambda: Message(HEAD, {"a": np.array([np.nan])}).array("a"), "NaN"),
    ):
        with pytest.raises(MessageError, match=why):
            bad()


# -- once, and for this question -----------------------------------------------------------------


def test_only_the_answer_to_the_question_counts() -> None:
    asked = {"ash": Message(HEAD), "birch": Message(Header("run-abc", "train.model", 3))}
    for changes, why in (
        ({"run": "other-abc"}, "must have run 'run-abc'; got 'other-abc'"),
        ({"phase": "train.ratio"}, "phase"),
        ({"round": 2}, "must have round 3; got 2: a stale or replayed"),
        ({"nonce": "0" * 32}, "nonce"),
        ({"nonce": asked["birch"].header.nonce}, "nonce"),  # another site's question
    ):
        expected = ExpectedReplies(asked)
        with pytest.raises(MessageError, match=why):
            expected.accept("ash", Message(Header(**{**HEAD.__dict__, **changes})), limit=10)
        assert expected.accept("ash", Message(HEAD), limit=0).header is HEAD  # it still may


def test_an_answer_counts_once_and_within_its_size() -> None:
    expected = ExpectedReplies({"ash": Message(HEAD)})
    answer = Message(HEAD, {"a": np.zeros(3)})
    assert expected.accept("ash", answer, limit=24) is answer
    with pytest.raises(MessageError, match="has replied already"):
        expected.accept("ash", answer, limit=24)
    with pytest.raises(MessageError, match="got no request"):
        expected.accept("elm", answer, limit=24)
    with pytest.raises(MessageError, match="at most 23 bytes; got 24"):
        ExpectedReplies({"ash": Message(HEAD)}).accept("ash", answer, limit=23)
    with pytest.raises(MessageError, match="no rows") as found:
        ExpectedReplies({"ash": Message(HEAD)}).accept(
            "ash", Message(HEAD).reply(error="no rows " * 1000), limit=0
        )
    assert len(str(found.value)) <= 500


def test_a_site_answers_a_question_once_and_for_its_task() -> None:
    seen = AnsweredNonces("abc", keep=2)
    seen.add(Message(HEAD))
    with pytest.raises(MessageError, match="replay"):
        seen.add(Message(HEAD))
    with pytest.raises(MessageError, match="agreed to task 'abc'; the request is for task 'abd'"):
        seen.add(Message(Header("run-abd", "train.model", 0)))
    with pytest.raises(MessageError, match="replay"):
        AnsweredNonces("abc", seen.recent).add(Message(HEAD))
    for _ in range(3):
        seen.add(Message(Header("x-abc", "train.model", 0)))
    assert len(seen.recent) == 2


def test_digests() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
