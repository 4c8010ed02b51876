from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.recorder.log_format import (
    FIRST_HEAD,
    Begin,
    End,
    Line,
    Repair,
    Session,
    Step,
    next_head,
    parse_line,
)

numbers = st.integers(0, 10**12)
heads = st.binary(min_size=16, max_size=16).map(bytes.hex)
lists = st.lists(numbers, max_size=3)
lines: st.SearchStrategy[Line] = st.one_of(
    st.builds(
        lambda rank, more, time: Session(rank, rank + more, time), numbers, st.integers(1, 9), st.floats(0, 1e10)
    ),
    st.builds(Begin, numbers, numbers, heads, st.one_of(st.sampled_from(["new", "none"]), heads)),
    st.builds(Step, numbers, st.none() | numbers, st.none() | st.builds(Repair, lists, lists, numbers, lists)),
    st.builds(End, numbers),
)


@given(lines, heads)
def test_a_line_is_read_as_it_was_written(line: Line, head: str) -> None:
    assert parse_line(f"{line.text()} {head}") == (line, head)


@given(lines, heads, st.data())
def test_a_changed_line_has_another_head(line: Line, before: str, data: st.DataObject) -> None:
    head = next_head(before, line.text())
    written = f"{line.text()} {head}"
    at = data.draw(st.integers(0, len(written) - 1))
    letter = data.draw(st.characters(min_codepoint=32, max_codepoint=126).filter(lambda each: each != written[at]))
    changed = written[:at] + letter + written[at + 1 :]
    try:
        parsed, claimed = parse_line(changed)
    except ValueError:
        return
    assert next_head(before, parsed.text()) != claimed


def test_a_head_depends_on_every_number() -> None:
    ids, none = np.arange(3), np.empty(0, np.int64)
    made = {
        next_head(FIRST_HEAD, "3 3", ids, none), next_head(FIRST_HEAD, "3 3", ids[::-1], none),
        next_head(FIRST_HEAD, "3 3", none, ids), next_head(FIRST_HEAD, "3 3", ids, ids),
        next_head(FIRST_HEAD, "3 3", ids, none, num_padded=1), next_head("1" * 32, "3 3", ids, none),
        next_head(FIRST_HEAD, "3 3"),
    }  # fmt: skip
    assert len(made) == 7


@pytest.mark.parametrize(
    "text",
    ["", "7", "7 8 9", "x 8", "07 8", "7 8 {}", "B 1 2 3 new", "E", "S {}", "S 7", 'S {"format":2}', "7 -8", "7 ٣",
     'S {"format":1,"rank":2,"time":1.0,"torn":0,"world_size":2}',
     '7 8 {"failed":[true],"ids":[],"padded":0,"sources":[]}'],
)  # fmt: skip
def test_other_lines_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_line(f"{text} {FIRST_HEAD}")
