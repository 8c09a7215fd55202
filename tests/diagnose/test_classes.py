from __future__ import annotations

import numpy as np

from fedshift.data.federation import Federation
from fedshift.diagnose.classes import GROUPS, Classes


def classes_of(*labels, test=None):
    x = np.zeros((len(labels[0]), 1))
    clients = {
        f"s{i}": (x, y, x) if test is None else (x, y, x, test) for i, y in enumerate(labels)
    }
    federation = Federation.of(clients)
    return Classes.of(federation), federation


def test_numbers_and_text_become_the_same_classes_everywhere():
    classes, fed = classes_of(np.array([0, 2, 2]), np.array([2.0, 0.0, 1.0]))
    assert classes.names == ("0", "1", "2")
    np.testing.assert_array_equal(classes.of_client(fed[0])[0], [0, 2, 2])
    np.testing.assert_array_equal(classes.of_client(fed[1])[0], [2, 0, 1])
    classes, fed = classes_of(
        np.array(["b", "a"]), np.array(["c", "a"], object), test=np.array(["d", "a"])
    )
    assert classes.names == ("a", "b", "c", "d")
    y, test_y = classes.of_client(fed[1])
    np.testing.assert_array_equal(y, [2, 0])
    np.testing.assert_array_equal(test_y, [3, 0])


def test_a_quantity_is_cut_at_its_training_quantiles():
    y = np.arange(100) / 7.0
    classes, fed = classes_of(y)
    assert len(classes.names) == GROUPS
    codes, none = classes.of_client(fed[0])
    np.testing.assert_array_equal(np.bincount(codes), [25, 25, 25, 25])
    assert none is None


def test_many_whole_numbers_are_classes():
    classes, _ = classes_of(np.arange(50))
    assert len(classes.names) == 50
    assert classes.cuts is None
