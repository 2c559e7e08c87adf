from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.scoring.errors import splits


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", ""]), st.booleans()), max_size=30))
def test_every_masked_row_is_tested_once_and_never_by_its_own_group(rows: list[tuple[str, bool]]) -> None:
    groups = np.array([row[0] for row in rows], dtype=np.str_)
    mask = np.array([row[1] for row in rows], dtype=np.bool_)
    found = list(splits(groups.tolist(), mask))
    np.testing.assert_array_equal(sum((split.test.astype(int) for split in found), np.zeros(len(rows), int)), mask)
    assert [split.name for split in found] == sorted(set(groups[mask].tolist()))
    for split in found:
        assert set(groups[split.test].tolist()) == {split.name}
        assert split.name not in groups[split.fit].tolist()
        np.testing.assert_array_equal(split.fit | split.test, mask)


def test_single_group_leaves_nothing_to_fit_on() -> None:
    (split,) = splits(["a", "a"])
    assert split.test.all()
    assert not split.fit.any()
