"""Pages that rebuild themselves: what a command prints, between its marks, and nothing else changes."""

import pytest
from fake_runs import write_run, write_seeds

from pdml.cli import main
from pdml.reporting.marked_pages import find_marks, find_pages, rebuild_page

PAGE = """# Title

<!-- pdml: summary runs --goal 900 -->
old
<!-- end -->

Text | that stays.

```markdown
<!-- pdml: train --env Hopper-v5 -->
```

<!-- pdml: figure seeds runs --out pictures -->

![seeds](pictures/seeds.png)
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_seeds(tmp_path / "runs", "pdml", [[100.0, 400.0], [200.0, 1000.0]], steps=2000)
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def rebuild(*words):
    return main(["results", "rebuild", *map(str, words)])


def test_a_page_gets_what_its_commands_print_and_draw(page, capsys):
    assert main(["summary", "runs", "--goal", "900"]) == 0
    table = capsys.readouterr().out
    assert rebuild("page.md") == 0
    assert capsys.readouterr().out.splitlines() == [
        "page.md, line 3: pdml summary runs --goal 900: rebuilt",
        "pictures/seeds.png: page.md, line 13: rebuilt",
        "tables: 1, figures: 1, pages: 1; rebuilt: 2",
    ]
    assert page.read_text() == PAGE.replace("old\n", f"\n{table}\n")
    assert [path.name for path in (page.parent / "pictures").iterdir()] == ["seeds.png"]
    once = page.read_text(), page.stat().st_mtime_ns
    assert rebuild("page.md") == 0
    assert capsys.readouterr().out == "tables: 1, figures: 1, pages: 1; rebuilt: 0\n"
    assert (page.read_text(), page.stat().st_mtime_ns) == once


def test_a_check_names_what_is_out_of_date_and_writes_nothing(page, capsys):
    assert rebuild("--check", page.parent) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["out of date", "out of date", "2"]
    assert page.read_text() == PAGE
    assert not (page.parent / "pictures").exists()
    rebuild(page)
    capsys.readouterr()
    assert rebuild("--check", page) == 0
    assert capsys.readouterr().out == "tables: 1, figures: 1, pages: 1; out of date: 0\n"


@pytest.mark.parametrize("change", ["number", "run", "by hand"])
def test_a_check_sees_every_change(change, page, capsys):
    rebuild(page)
    capsys.readouterr()
    evaluations = page.parent / "runs" / "pdml" / "0" / "evaluations.csv"
    if change == "number":
        evaluations.write_text(evaluations.read_text().replace("390.0", "392.0"))
    elif change == "run":
        write_run(page.parent / "runs" / "more", seed=2, returns=[1.0], steps=1000)
    else:
        page.write_text(page.read_text().replace("| 400 |", "| 401 |"))
    assert rebuild("--check", page) == 1
    said = capsys.readouterr().out
    assert "line 3" in said
    assert ("seeds.png" in said) == (change != "by hand")


def test_what_cannot_be_read_as_a_picture_is_out_of_date(page, capsys):
    rebuild(page)
    (page.parent / "pictures" / "seeds.png").write_text("no picture")
    assert rebuild("--check", page) == 1
    assert "pictures/seeds.png: " in capsys.readouterr().out


def test_pages_are_found_below_directories_but_not_in_what_was_built(tmp_path):
    for name in ("b.md", "a/c.md", "a/_build/d.md", ".hidden/e.md", "a/f.txt", "a/_g.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = [str(path.relative_to(tmp_path)) for path in find_pages([tmp_path, tmp_path / "b.md"])]
    assert found == ["a/_g.md", "a/c.md", "b.md"]


def test_several_tables_of_a_page_keep_their_places(page):
    text = "<!-- pdml: list envs -->\n<!-- end -->\nbetween\n<!-- pdml: list 'a b' -->  \nx\ny\n<!-- end -->\nlast"
    marks = find_marks(page, text)
    assert [(mark.line, mark.end, mark.words) for mark in marks] == [(1, 2, ("list", "envs")), (4, 7, ("list", "a b"))]
    new, changed = rebuild_page(text, marks, lambda mark: f"{mark.words[1]}\nmore\n")
    assert changed == marks
    assert new == (
        "<!-- pdml: list envs -->\n\nenvs\nmore\n\n<!-- end -->\nbetween\n"
        "<!-- pdml: list 'a b' -->  \n\na b\nmore\n\n<!-- end -->\nlast"
    )
    assert rebuild_page(new, find_marks(page, new), lambda mark: f"{mark.words[1]}\nmore") == (new, [])


BAD = [
    ("<!-- pdml: summary runs -->\n", "page.md, line 1: no '<!-- end -->' after the command"),
    ("<!-- end -->\n", "page.md, line 1: '<!-- end -->' without a command before it"),
    (
        "\n<!-- pdml: list envs -->\n<!-- pdml: list envs -->\n",
        "page.md, line 2: no '<!-- end -->' before the next command",
    ),
    (
        "<!-- pdml summary runs -->\n",
        "page.md, line 1: '<!-- pdml summary runs -->' is no command; write <!-- pdml: COMM",
    ),
    ("<!-- pdml: -->\n", "'<!-- pdml: -->' is no command"),
    ("<!-- pdml: summary 'runs -->\n", "is no command"),
    (
        "<!-- pdml: train --steps 9 -->\n<!-- end -->\n",
        "line 1: 'pdml train' is not for pages; allowed: summary, figure,",
    ),
    ("<!-- pdml: results rebuild . -->\n<!-- end -->\n", "line 1: 'pdml results' is not for pages"),
    ("<!-- pdml: summary --help -->\n<!-- end -->\n", "line 1: 'pdml summary --help' is not for pages"),
    ("<!-- pdml: summary nowhere -->\n<!-- end -->\n", "line 1: run = 'nowhere': no run there or below"),
    (
        "<!-- pdml: summary runs --gaol 3 -->\n<!-- end -->\n",
        "line 1: '--gaol': pdml summary has no such argument (did",
    ),
    ("<!-- pdml: figure seeds runs -->\n", "page.md, line 1: a figure of a page needs --out DIR"),
    ("<!-- pdml: figure seed runs --out . -->\n", "page.md, line 1: figure = 'seed': unknown (did you mean seeds?)"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
@pytest.mark.parametrize("check", [False, True])
def test_mistakes_in_a_page_are_one_line_and_nothing_is_written(text, message, check, page, capsys):
    page.write_text(text)
    (page.parent / "a.md").write_text("<!-- pdml: list envs -->\n<!-- end -->\n")
    assert rebuild("a.md", "page.md", *(["--check"] if check else [])) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err
    assert page.read_text() == text
    assert "obs" not in (page.parent / "a.md").read_text()


def test_damaged_runs_are_no_table(page, capsys):
    evaluations = page.parent / "runs" / "pdml" / "0" / "evaluations.csv"
    evaluations.write_text(evaluations.read_text()[:-3])
    assert rebuild(page) == 2
    assert "line 3: runs/pdml/0/evaluations.csv: line 5 is half-written" in capsys.readouterr().err
    assert page.read_text() == PAGE


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.md"], "page = 'nowhere.md': does not exist"),
        ([], "the following arguments are required: PAGE"),
        (["binary.md"], "page = 'binary.md': cannot be read (UnicodeDecodeError)"),
    ],
)
def test_mistakes_are_one_line(words, message, page, capsys):
    (page.parent / "binary.md").write_bytes(b"\xff\xfe")
    assert rebuild(*words) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err


def test_one_of_the_three_files_of_a_figure(page, capsys):
    for ending in ("csv", "png", "pdf"):
        assert main(["figure", "seeds", "runs", "--out", ending, "--only", ending]) == 0
        assert [path.name for path in (page.parent / ending).iterdir()] == [f"seeds.{ending}"]
    capsys.readouterr()
    assert main(["figure", "seeds", "runs", "--out", "png", "--check"]) == 0
    assert main(["figure", "seeds", "runs", "--out", "csv", "--check"]) == 1
    assert capsys.readouterr().out.splitlines() == ["png/seeds.png: up to date", "csv/seeds.png: out of date"]


def test_means_beside_published_ones(tmp_path, capsys):
    # DHMBPO's authors publish Hopper at 20000 steps: 2101 ± 1102, 8 seeds
    ends = {"dhmbpo": (1000.0, 3000.0), "pdml-dhmbpo": (500.0, 500.0)}
    for method, (one, other) in ends.items():
        write_seeds(tmp_path, method, [[0.0] * 14 + [one], [0.0] * 14 + [other]], steps=15000)
    write_run(tmp_path / "far", "dhmbpo", returns=[7.0] * 15, steps=15000, **{"double.far": 10})
    assert main(["summary", str(tmp_path), "--short"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| method | steps | seeds | last evaluation | published |",
        "|---|---|---|---|---|",
        "| dhmbpo | 20000 | 2 | 2000 ± 1414 | 2101 ± 1102, 8 seeds |",
        "| dhmbpo double.far=10 | 20000 | 1 | 7 | – |",
        "| pdml-dhmbpo | 20000 | 2 | 500 ± 0 | – |",
        "",
        "DHMBPO as published: 8 seeds, mean ± standard deviation; its Hopper differs slightly from Gymnasium's v5 "
        "(joint velocities not clipped).",
    ]
    assert main(["summary", str(tmp_path / "dhmbpo"), "--short", "--last", "2", "--until", "20000"]) == 0
    assert capsys.readouterr().out.splitlines()[::2] == [
        "| method | steps | seeds | mean of the last 2 evaluations | published |",
        "| dhmbpo | 20000 | 2 | 1000 ± 707 | – |",
    ]
    assert main(["summary", str(tmp_path / "dhmbpo"), "--short", "--goal", "9"]) == 2
    assert "--goal belongs to the table of seeds" in capsys.readouterr().err
