"""The README and the pages of docs/ tell the truth: their commands run and print what they show.

``python tests/test_docs.py`` writes today's output into them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from planner.cli.main import main
from planner.cli.options import COMMANDS, OPTIONS
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import Layer, LayerKind
from planner.formats.schemas import schema
from planner.networks.huggingface import MODEL_TYPES, Key
from planner.networks.zoo import arguments_of
from planner.sessions.runs import unfitted_sources

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README = PAGES["README.md"]
PLANNER = Path(sysconfig.get_path("scripts")) / "planner"
MOST_LINES = 150
"""Of the README."""


def console_blocks(text: str) -> list[tuple[str, str]]:
    """Return (command, expected output) of every ``$ planner ...`` in fenced ``console`` blocks."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment of a machine without calibrations of its own, whose terminal has 80 columns."""
    return os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "XDG_DATA_HOME": str(folder)}


def printed(command: str, folder: Path, stderr: io.StringIO | None = None) -> str:
    """Return what a command shows, with its messages unless ``stderr`` takes them."""
    program, *words = shlex.split(command)
    assert program == "planner"
    out = io.StringIO()
    with (
        patch.dict(os.environ, environment_of(folder)),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out if stderr is None else stderr),
    ):
        code = main(words)
    assert code == 0, out.getvalue()
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def rewritten(text: str, folder: Path) -> str:
    """Return the text with every console block as its commands print now."""

    def block(match: re.Match[str]) -> str:
        commands = [command for command, _ in console_blocks(match[0])]
        return "```console\n" + "".join(f"$ {one}\n{printed(one, folder)}" for one in commands) + "```"

    return re.sub(r"```console\n.*?```", block, text, flags=re.DOTALL)


BLOCKS = [(page, *block) for page, text in PAGES.items() for block in console_blocks(text)]


FORMS = {1: "vectors", 2: "sequences", 3: "images"}
LAYERS = """# Kinds of layers

Written by `python tests/test_docs.py`, from the records in `planner/domain/layers`. A layer *reads* one other, but
where it says how many; images are channels x height x width, sequences positions x features. An attribute without a
default must be given. *Keeps* says which tensors stay for the backward pass with the defaults, but for masks, indices
and statistics; *divided* along what a group of ranks may share the layer, each computing its part: of products their
outputs and inputs.

| kind | reads | attributes | keeps | divided |
|---|---|---|---|---|
"""


def layers_page() -> str:
    return LAYERS + "".join(_row(name, kind) for name, kind in sorted(LAYER_KINDS.items()))


def _row(name: str, kind: LayerKind) -> str:
    forms = ", ".join(FORMS[rank] for rank in kind.ranks)
    attributes = "; ".join(
        f"`{key}`: {one.doc}"
        + (", one of " + ", ".join(one.type.split("|")) if "|" in one.type else "")
        + ("" if one.default is None else f" (`{json.dumps(one.default)}`)")
        for key, one in kind.attributes.items()
    )
    required = {key: LEAST[one.type] for key, one in kind.attributes.items() if one.default is None}
    kept = kind.keeps(Layer(name, name, ("input",), required))
    keeps = " and ".join(word for word, is_kept in zip(("input", "output"), kept, strict=True) if is_kept)
    along = ", ".join((*(("outputs", "inputs") if kind.outputs else ()), *kind.divides))
    number = {True: "two or more ", None: "one or more "}.get(kind.joins, "")
    return f"| `{name}` | {number}{forms} | {attributes or '-'} | {keeps or '-'} | {along or '-'} |\n"


LEAST: dict[str, int | float] = {"int": 1, "pair": 1, "float": 0.0}


def test_the_table_of_kinds_of_layers_is_that_of_their_records() -> None:
    assert PAGES["layers.md"] == layers_page(), "write it anew: python tests/test_docs.py"


KEYS = "## Model types and keys\n"
MODELS = f"""{KEYS}
Written by `python tests/test_docs.py`, from the declarations in `planner/networks/huggingface.py`.

| `model_type` | read as | always | positions of a sample | counted, whatever the key says |
|---|---|---|---|---|
"""


def models_tables() -> str:
    """Return the tables of model types and of their keys, from the declarations of the reader."""
    types = [
        f"| `{name}` | `{one.family}` | {', '.join(f'`{key}={value}`' for key, value in one.fixed.items()) or '-'} | "
        f"{f'`{one.positions}`, at most {one.cap}' if one.positions else '-'} | "
        f"{'; '.join(f'`{key}`: {words}' for key, (_, words) in one.counted.items())} |\n"
        for name, one in MODEL_TYPES.items()
    ]
    readers: dict[tuple[str, str, str, str], list[str]] = {}
    for name, one in MODEL_TYPES.items():
        for key in one.keys:
            row = (key.name, _gives(key, one.family), _absent(key), ", ".join(f"`{word}`" for word in key.words) or "-")
            readers.setdefault(row, []).append(name)
    keys = [f"| `{key}` | {' | '.join(rest)} | {', '.join(names)} |\n" for (key, *rest), names in readers.items()]
    return (
        MODELS
        + "".join(types)
        + "\n| key | argument it gives | where absent | values | read of |\n|---|---|---|---|---|\n"
        + "".join(keys)
    )


def _gives(key: Key, family: str) -> str:
    if not key.argument:
        return "none: other values are refused"
    return f"`{key.argument}`: {arguments_of(family)[key.argument].rpartition(' (')[0].partition(';')[0]}"


def _absent(key: Key) -> str:
    return "refused" if key.absent is None else f"`{key.absent}`" if key.absent else "allowed"


def models_page() -> str:
    return PAGES["your-models.md"].partition(KEYS)[0] + models_tables()


def test_the_tables_of_model_types_are_those_of_the_reader() -> None:
    assert PAGES["your-models.md"] == models_page(), "write it anew: python tests/test_docs.py"


CLUSTER_KEYS = "## Keys of a cluster file\n"
CLUSTER = f"""{CLUSTER_KEYS}
Written by `python tests/test_docs.py`, from the schema of files. `(needed)`: wherever its table stands.

| table | key | what it is |
|---|---|---|
"""


def cluster_page() -> str:
    return PAGES["your-files.md"].partition(CLUSTER_KEYS)[0] + CLUSTER + "".join(_cluster_rows(schema("cluster")))


def _cluster_rows(table: dict[str, Any], name: str = "") -> Iterator[str]:
    inner = {key: one for key, one in table["properties"].items() if "properties" in one}
    for key, one in table["properties"].items():
        if key not in inner:
            need = " (needed)" if key in table.get("required", ()) else ""
            words = "; ".join(filter(None, (one["description"], ", ".join(_choices(one)))))
            yield f"| {f'`[{name}]`' if name else '-'} | `{key}`{need} | {words} |\n"
    for key, one in inner.items():
        yield from _cluster_rows(one, f"{name}.{key}" if name else key)


def _choices(one: dict[str, Any]) -> list[str]:
    return [f"`{word}`" for word in one.get("enum", one.get("propertyNames", {}).get("enum", ()))]


def test_the_table_of_keys_of_a_cluster_is_that_of_its_schema() -> None:
    assert PAGES["your-files.md"] == cluster_page(), "write it anew: python tests/test_docs.py"


def test_readme_shows_commands_and_is_short() -> None:
    assert any(page == "README.md" and "suggest --target-batch 138" in command for page, command, _ in BLOCKS)
    assert len(README.splitlines()) <= MOST_LINES


@pytest.mark.parametrize(("page", "command", "expected"), BLOCKS, ids=[f"{page}: {one}" for page, one, _ in BLOCKS])
def test_output_is_what_the_command_prints(page: str, command: str, expected: str, tmp_path: Path) -> None:
    assert printed(command, tmp_path) == expected, f"python tests/test_docs.py writes it into {page}"


def test_the_installed_program_prints_the_same(tmp_path: Path) -> None:
    """Other blocks are printed in this process: one has a process of its own, with both streams of the system."""
    page, command, expected = BLOCKS[0]
    words = [str(PLANNER), *shlex.split(command)[1:]]
    done = subprocess.run(
        words, env=environment_of(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=True,
    )  # fmt: skip
    assert (page, done.stdout) == ("README.md", expected)


PART = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\d>|[^'"|;>&])+"""
"""What stands between pipes, redirections and the like, but for those in quotes."""


def shell_commands(text: str) -> list[list[str]]:
    """Return the words of every ``planner`` command in fenced ``sh`` blocks, up to a pipe or the next command."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            for part in re.findall(PART, line.partition(" #")[0]):
                words = shlex.split(part)
                if words and Path(words[0]).name == "planner":
                    found.append(words[1:])
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_are_not_run_have_options_that_exist(page: str) -> None:
    known = {command.name: {OPTIONS[name].flag for name in command.options} for command in COMMANDS}
    for command, *words in shell_commands(PAGES[page]):
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert flags <= known[command], (command, flags - known[command])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    folder = ROOT if page == "README.md" else ROOT / "docs"
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGES[page])
    assert [link for link in links if not (folder / link).exists()] == []


def test_accuracy_of_the_readme_is_that_of_the_page() -> None:
    figures = json.loads((ROOT / "docs" / "accuracy.json").read_text())
    rows = [line.split("|")[2:4] for line in README.splitlines() if re.match(r"\| (the network|every run)", line)]
    every, pollux = figures["parts"]["development"], figures["ranking"]["pollux-t4"]
    assert [[count.strip(), figure.strip()] for count, figure in rows] == [
        *(
            [
                f"{every[axis]['n']:,}",
                "mean error {:.1f} % over sources, {:.1f} % over runs".format(
                    100 * every[axis]["of_sources"]["mape"], 100 * every[axis]["mape"]
                ),
            ]
            for axis in AXES
        ),
        [f"{every['network']['n']:,}", f"{100 * every['network']['coverage_90']:.0f} %"],
        [f"{pollux['groups']} groups", f"{100 * pollux['regret_mean']:.1f} % slower"],
    ]


AXES = ("network", "gpu", "cluster")


def toml_blocks(text: str) -> dict[str, str]:
    """Return the TOML files that the text shows, by kind; one each."""
    blocks = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    found = {tomllib.loads(block)["format"].removeprefix("planner/"): block for block in blocks}
    assert len(found) == len(blocks)
    return found


def test_files_that_pages_show_work(tmp_path: Path) -> None:
    files = toml_blocks("".join(PAGES.values()))
    assert set(files) == {"network", "cluster", "settings"}
    for kind, text in files.items():
        (tmp_path / ("planner.toml" if kind == "settings" else f"{kind}.toml")).write_text(text)
    command = "planner suggest --target-batch 256 --network network.toml --json"
    document = json.loads(printed(command, tmp_path, io.StringIO()))  # a note says what planner.toml gave
    sources = {key: document["request"][key]["source"] for key in ("cluster", "precision")}
    assert sources == dict.fromkeys(sources, "planner.toml")
    command = "planner predict --network network.toml --cluster cluster.toml --sub-batch 32 --precision fp32 --json"
    prediction = json.loads(printed(command, tmp_path, io.StringIO()))
    subject = prediction["subject"]
    assert (subject["network"], subject["cluster"], subject["input"]) == ("small", "mine", "storage")
    assert prediction["epoch_usd"]["value"] > 0


def test_tables_of_runs_and_their_sources_are_counted() -> None:
    """The page and the changelog say how many there are; the README counts those that fits learn from."""
    words = {7: "seven", 25: "twenty-five", 30: "thirty", 32: "thirty-two"}
    folder = ROOT / "validation"
    described = len(tomllib.loads((folder / "SOURCES.toml").read_text()))
    tables, sources = words[len(list(folder.glob("*.csv")))], words[described]
    page = " ".join(PAGES["validating.md"].split())
    assert f"training runs of {sources} public sources in {tables} tables" in page
    unfitted = len(unfitted_sources(folder))
    assert f"fits learn from all but {words[unfitted]} of the sources" in page
    assert f"training runs of {words[described - unfitted]} public sources" in " ".join(README.split())
    changes = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    assert f"{tables} tables of such runs, from {sources} public sources" in changes


def names_in(path: Path) -> set[str]:
    """Return what a module defines: functions, classes, constants, and methods behind the name of their class."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return found


WHERE = (ROOT / "CONTRIBUTING.md").read_text().split("## Where is it")[1].split("\n## ")[0]
PLACES = re.findall(r"^\| (.+?) \| (\w*) ?\| `(.+?)` \| `(.+?)` \|$", WHERE, flags=re.MULTILINE)


def test_the_rooms_of_the_table_are_those_that_there_are() -> None:
    rooms = re.findall(r"^\| `(\w+)` \|", WHERE, flags=re.MULTILINE)
    assert sorted(rooms) == sorted(path.parent.name for path in (ROOT / "planner").glob("*/__init__.py"))
    assert len(PLACES) >= 25
    assert len(PLACES) + len(rooms) + 2 == len(re.findall(r"^\| (?!---)", WHERE, flags=re.MULTILINE))


@pytest.mark.parametrize(("looking_for", "room", "file", "name"), PLACES)
def test_what_the_table_names_stands_there(looking_for: str, room: str, file: str, name: str) -> None:
    path = ROOT / file
    assert Path(file).parts[1] == (room or Path(file).name), looking_for
    assert name in names_in(path), looking_for


def test_blocks_are_found_where_they_are() -> None:
    text = "```console\n$ planner a\nx\n$ planner b\n```\n"
    assert console_blocks(text) == [("planner a", "x\n"), ("planner b", "")]


if __name__ == "__main__":
    PAGES |= {"layers.md": layers_page(), "your-models.md": models_page(), "your-files.md": cluster_page()}
    for page, text in PAGES.items():
        with tempfile.TemporaryDirectory() as empty:
            path = ROOT / page if page == "README.md" else ROOT / "docs" / page
            path.write_text(rewritten(text, Path(empty)))
