import io

import pytest

from planner.report.blocks import Line, Pairs, Table, given, print_blocks, title


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def text_of(stream: io.StringIO) -> str:
    print_blocks([title("Head"), Table(("a", "n"), [("x", "1")], right=("n",))], stream)
    return stream.getvalue()


def test_a_file_gets_plain_text() -> None:
    assert text_of(io.StringIO()) == "Head\na  n\nx  1\n"


def test_a_terminal_gets_colour_unless_it_is_unwanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1m" in text_of(Terminal())
    warning = [Line("text", indent=2, label="code: ")]
    coloured, plain = Terminal(), Terminal()
    print_blocks(warning, coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    print_blocks(warning, plain)
    assert "\x1b[33m" in coloured.getvalue()
    assert plain.getvalue().rstrip() == "  code: text"


def test_a_file_has_colour_where_it_is_forced_but_never_where_it_is_unwanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1m" in text_of(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in text_of(io.StringIO())
    assert "\x1b" not in text_of(Terminal())


@pytest.mark.parametrize(("columns", "width"), [("40", 40), ("120", 120), ("", 80), ("0", 80), ("wide", 80)])
def test_columns_decide_the_width_of_a_file(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = io.StringIO()
    print_blocks([Line("word " * 99)], out)
    assert width - 5 <= max(map(len, out.getvalue().splitlines())) <= width


def test_a_table_drops_columns_in_order_until_a_line_holds_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(("a", "b", "c"), [("x" * 10, "y" * 10, "z" * 10)], fixed=True, dropped=("c", "b"))
    for columns, held in ((40, "abc"), (32, "abc"), (31, "ab"), (21, "ab"), (20, "a"), (5, "a")):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = io.StringIO()
        print_blocks([table], out)
        assert "".join(out.getvalue().splitlines()[0].split()) == held


def test_long_texts_wrap_at_80_columns_and_lose_nothing() -> None:
    out = io.StringIO()
    words = " ".join(f"word{at}" for at in range(60))
    print_blocks([Line(words, indent=2), Pairs([("name", words)]), Table(("a", "b"), [(words, words)])], out)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert out.getvalue().count("word59") == 4


def test_commands_stay_in_one_line() -> None:
    """Of a command that is broken, a shell runs the first part."""
    out = io.StringIO()
    command = "planner calibrate" + " --network some-network" * 9
    called = "`planner calibrate --device cuda --network NAME`"
    words = [f"{'x' * at} {called} and more" for at in range(80)]
    print_blocks([Line(command, indent=2, whole=True), *(Line(one, indent=2) for one in words)], out)
    first, *lines = out.getvalue().splitlines()
    assert first == f"  {command}"
    assert sum(called in line for line in lines) == len(words)
    assert max(map(len, lines)) <= 80


def test_markup_in_a_name_is_only_text() -> None:
    out = io.StringIO()
    print_blocks([Line("[bold]net[/bold] :smile:"), Pairs([("[red]", "x")])], out)
    assert out.getvalue().splitlines()[0] == "[bold]net[/bold] :smile:"
    assert "[red]" in out.getvalue()


def test_empty_texts_are_left_out_of_facts() -> None:
    assert given([("a", ""), ("b", "x")]) == Pairs([("b", "x")])
