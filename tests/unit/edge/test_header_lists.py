"""RFC 9110 lists and parameters, read leniently."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.header_lists import MALFORMED, Parameter, parse_elements


@pytest.mark.parametrize(
    ("field_values", "elements"),
    [
        ([], []),
        ([""], []),
        ([" ,\t, "], []),
        (["a"], [(Parameter("a", None),)]),
        (["A=B"], [(Parameter("a", "B"),)]),
        (["a=1, b=2"], [(Parameter("a", "1"),), (Parameter("b", "2"),)]),
        (["a=1", "b=2"], [(Parameter("a", "1"),), (Parameter("b", "2"),)]),
        (["a=1;b=2;c"], [(Parameter("a", "1"), Parameter("b", "2"), Parameter("c", None))]),
        (['a="x,y;z=1"'], [(Parameter("a", "x,y;z=1"),)]),
        ([r'a="\"\\,"'], [(Parameter("a", '"\\,'),)]),
        (['a="'], [(Parameter("a", ""),)]),
        (['a="x\\'], [(MALFORMED,)]),
        (["a=[::1]:80"], [(Parameter("a", "[::1]:80"),)]),
        (["a;"], [(Parameter("a", None), MALFORMED)]),
        ([";a"], [(MALFORMED, Parameter("a", None))]),
        (["=1;a b;c"], [(MALFORMED, MALFORMED, Parameter("c", None))]),
        (['a="1"2'], [(MALFORMED,)]),
    ],
)
def test_elements_and_parameters_are_told_apart(
    field_values: list[str], elements: list[tuple[Parameter, ...]]
) -> None:
    assert parse_elements(field_values) == elements


@given(st.lists(st.text(alphabet=st.one_of(st.characters(), st.sampled_from(';,="\\ \ta')))))
def test_no_text_raises(field_values: list[str]) -> None:
    parse_elements(field_values)


_TOKEN = st.text(alphabet="abcz019-_", min_size=1)
_PARAMETERS = st.lists(st.tuples(_TOKEN, st.none() | st.text(max_size=9)), min_size=1, max_size=4)


@given(st.lists(_PARAMETERS, max_size=4))
def test_what_is_quoted_properly_comes_back(lists: list[list[tuple[str, str | None]]]) -> None:
    def written(name: str, value: str | None) -> str:
        if value is None:
            return name
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'{name}="{escaped}"'

    line = ", ".join(";".join(written(*parameter) for parameter in one) for one in lists)
    assert parse_elements([line]) == [tuple(Parameter(*each) for each in one) for one in lists]


@pytest.mark.parametrize("unit", ['"', '"\\', '\\"', 'a="\\"', " ", "a=", ";", ",", "= "])
def test_hostile_repetition_is_read_to_its_end(unit: str) -> None:
    parse_elements([unit * 20_000, unit * 20_000 + "\\"])
