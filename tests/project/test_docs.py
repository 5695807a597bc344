"""Documents that can fail: what they name exists, their code runs, and their figures are those of
the records.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from longdraft.cli import main
from longdraft.drafters.kinds import KINDS
from longdraft.methods import ANY, METHODS, Method

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import figures  # noqa: E402
import headlines  # noqa: E402
import measured  # noqa: E402
import pays  # noqa: E402
import peers  # noqa: E402
import qwen_coder  # noqa: E402
import smollm2  # noqa: E402
import summary  # noqa: E402
import tests_page  # noqa: E402

README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("README.md")]
FILES += [
    ROOT / "tests" / "README.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "longdraft-drafters" / "README.md",
]
PAGES = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in FILES}
# these two describe the past
CURRENT = [page for page in PAGES if not page.startswith(("docs/log/2", "CHANGELOG.md"))]
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGES["docs/methods.md"], re.M | re.S))


def row(name: str, method: Method) -> str:
    """The method's row in the table of docs/methods.md, as its record and its kind's record say."""
    weights = {None: "none", ANY: "any available"} | {
        kind.name: kind.title for kind in KINDS.values()
    }
    return f"| `{name}` | {method.drafts} | {weights[method.needs]} | {method.paper} |"


def test_the_table_of_methods_is_that_of_the_records():
    table = re.findall(r"^\| `[a-z0-9-]+` \|.*$", PAGES["docs/methods.md"], re.M)
    assert table == [row(name, method) for name, method in METHODS.items()]
    assert table[0] != row("plain", replace(METHODS["plain"], paper="another"))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_explained(name):
    assert name in {n for heading in SECTIONS for n in heading.split(", ")}, (
        f"docs/methods.md has no section {name}"
    )


def test_every_option_is_documented_with_its_default(capsys):
    assert main(["methods", "--json"]) == 0
    for method in json.loads(capsys.readouterr().out)["methods"]:
        name = method["name"]
        section = next(text for heading, text in SECTIONS.items() if name in heading.split(", "))
        lines = dict(re.findall(r"^Options(?: of `([a-z-]+)`)?: (.*)$", section, re.M))
        documented = re.findall(r"`(\w+)=([^`]+)`", lines.get(name, lines.get("", "")))
        options = {k: o["default"] for k, o in method["options"].items() if k != "pace"}
        assert documented == [(k, _text(v)) for k, v in options.items()], name


def _text(value) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


@pytest.mark.full
def test_the_readme_example_prints_what_readme_shows(monkeypatch, capsys):
    found = re.search(r"```python\n(.*?)```\n+```\n(.*?)```", README, re.S)
    assert found
    monkeypatch.chdir(ROOT)
    exec(compile(found[1], "README.md", "exec"), {})
    assert capsys.readouterr().out == found[2]


def test_the_packages_are_listed():
    """architecture.md has every package of src/longdraft and no other."""
    table = PAGES["docs/architecture.md"]
    inside = [p for p in (ROOT / "src" / "longdraft").iterdir() if p.is_dir() or p.suffix == ".py"]
    named = {p.stem for p in inside if not p.name.startswith("__")} - {"assets"}
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == named


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", PAGES[page])
    folder = (ROOT / page).parent
    assert [x for x in links if "://" not in x and not (folder / x).exists()] == []


def test_files_that_the_pages_name_exist():
    pattern = r"`(?:\w+ )?((?:src|tests|docs|benchmarks|examples)/[\w./-]+)`"
    named = {m for page in CURRENT for m in re.findall(pattern, PAGES[page])}
    assert len(named) > 10
    assert [n for n in named if not (ROOT / n).exists()] == []


def test_names_of_the_package_that_the_pages_use_exist():
    """`longdraft.a.b` in a page, or `::: longdraft.a.b` in the API reference, can be imported."""
    from pydoc import locate

    named = {
        m
        for page in CURRENT
        for m in re.findall(r"(?:`|^::: )(longdraft(?:\.\w+)+)", PAGES[page], re.M)
    }
    assert len(named) > 20
    assert [n for n in named if locate(n) is None] == []


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    pages = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r": ([\w/-]+\.md)$", nav, re.M)) == pages


def test_the_figure_is_from_the_records(capsys):
    assert figures.main(["--check"]) == 0


def test_the_check_of_the_figure_sees_another_number(tmp_path, monkeypatch, capsys):
    changed = figures.FIGURE.read_text(encoding="utf-8").replace('"vegas": [1.', '"vegas": [9.', 1)
    assert figures.stored(changed) != figures.plotted()
    monkeypatch.setattr(figures, "FIGURE", tmp_path / "speedup.svg")
    figures.FIGURE.write_text(changed, encoding="utf-8")
    assert figures.main(["--check"]) == 1


@pytest.mark.full
def test_the_figure_of_what_pays_is_what_is_predicted_and_measured(tmp_path, monkeypatch, capsys):
    assert pays.main(["--check"]) == 0
    monkeypatch.setattr(pays, "CONTEXTS", pays.CONTEXTS[:-1])
    assert pays.main(["--check"]) == 1


def test_the_figure_shows_each_of_these_numbers():
    pytest.importorskip("matplotlib")
    data = json.loads(figures.plotted())
    whole = figures.draw(json.dumps(data))
    assert figures.stored(whole) == figures.plotted()
    del data["Code, greedy (repetitive output)"]["32K"]["suffix"]
    assert figures.draw(json.dumps(data)).count("<use ") == whole.count("<use ") - 1


def _row(values: list[float]) -> str:
    return "{:.2f}x ({:.2f} to {:.2f})".format(*values)


BOTH = [(text, n) for text in ("code", "book") for n in (16384, 32768)]
REAL = [(text, n) for text in ("code", "book") for n in (1024, 4096, 7168)]
COPIES = {"copy": "quantspec@draft_weights=int8@draft_kv=int8"}
COPIES["copy, guided"] = "vegas@draft_weights=int8@keep_ratio=0.25"
BUNDLED, SMOLLM2 = figures.FILES


@pytest.mark.parametrize(
    ("header", "file", "cells"),
    [
        ("| text sampled at T=1 |", BUNDLED, [(t, 1.0, n, figures.BEST) for t, n in BOTH]),
        ("| AVX2, T=1 |", BUNDLED, [(t, 1.0, n, "avx2") for t, n in BOTH]),
        (
            "| code, greedy |",
            BUNDLED,
            [("code", 0.0, n, k) for k in (figures.BEST, "avx2") for n in (16384, 32768)],
        ),
        ("| T=1 |", SMOLLM2, [(t, 1.0, n, figures.BEST) for t, n in REAL]),
        ("| greedy |", SMOLLM2, [(t, 0.0, n, figures.BEST) for t, n in REAL]),
        ("| T=1, AVX2 |", SMOLLM2, [(t, 1.0, n, "avx2") for t, n in REAL]),
        ("| greedy, AVX2 |", SMOLLM2, [(t, 0.0, n, "avx2") for t, n in REAL]),
    ],
)
def test_speedups_in_the_tables_are_from_the_records(header, file, cells):
    known = figures.speedups(file, "method" if file == BUNDLED else "label")
    table = PAGES["docs/performance.md"].split("\n" + header)[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([a-z][a-z, -]+) \| (.*) \|$", table, re.M)
    assert len(rows) >= 4
    for method, shown in rows:
        assert shown.split(" | ") == [
            _row(known[cell][COPIES.get(method, method)]) for cell in cells
        ], method


def test_the_speed_tables_are_the_report_of_the_records(tmp_path, capsys, monkeypatch):
    # plots take long: test_report.py
    monkeypatch.setattr("longdraft.bench.report_files.available", lambda: False)
    files = [str(ROOT / "benchmarks" / "records" / name) for name in figures.FILES]
    assert main(["report", *files, "--out", str(tmp_path)]) == 0
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert PAGES["docs/results/speed.md"].split("\n## ", 1)[1] == report.split("\n## ", 1)[1]


def test_the_pages_on_models_are_made_from_the_records():
    assert smollm2.main(["--check"]) == 0 and qwen_coder.main(["--check"]) == 0


def test_the_figures_of_the_readme_are_from_the_records(capsys):
    assert headlines.main(["--check"]) == 0 and peers.main(["--check"]) == 0


def test_no_figure_of_the_readme_is_written_by_hand():
    block = README.split("<!-- figures: begin")[1].split("<!-- figures: end -->")[0]
    factor = r"\d\.\d+x|times as (?:fast|slow)|tokens/s"
    assert re.search(factor, block) and not re.search(factor, README.replace(block, ""))


@pytest.mark.parametrize(
    ("generator", "page", "block"),
    [
        (headlines, "README", "figures"),
        (headlines, "PERFORMANCE", "engines"),
        (headlines, "PERFORMANCE", "models"),
        (headlines, "PERFORMANCE", "losses"),
        (peers, "PAGE", "peers"),
    ],
)
def test_the_check_of_a_page_sees_another_number(
    tmp_path, monkeypatch, capsys, generator, page, block
):
    text = getattr(generator, page).read_text(encoding="utf-8")
    head, begin, rest = text.partition(f"<!-- {block}: begin")
    figure = re.search(r"\d\.\d+x| \d+\.\d \(", rest)
    assert figure
    changed = (
        head + begin + rest.replace(figure[0], figure[0].replace(figure[0].strip()[0], "9", 1), 1)
    )
    monkeypatch.setattr(generator, page, tmp_path / "page.md")
    monkeypatch.setattr(measured, "ROOT", tmp_path)
    getattr(generator, page).write_text(changed, encoding="utf-8")
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0 and getattr(generator, page).read_text(encoding="utf-8") == text


def test_the_figures_on_qwen_coder_are_ratios_of_medians(tmp_path, monkeypatch, capsys):
    """One is counted here once more; goals that are missed are marked; and the check sees another
    number.
    """
    found = measured.records(qwen_coder.SOURCE)
    page = qwen_coder.PAGE.read_text(encoding="utf-8")
    same = [
        r
        for r in found
        if (r["model"], r["context"], r["task"]) == (qwen_coder.SMALL, 1024, "speed")
    ]
    rates = [
        [r["tokens_per_s"] for r in same if r["label"] == f"llama.cpp@fa={fa}"]
        for fa in ("on", "off")
    ]
    ratio = median(r["tokens_per_s"] for r in same if r["label"] == "plain") / max(
        map(median, rates)
    )
    assert f"| 0.5B, plain over the fastest engine's plain | {ratio:.2f} (1.2, before" in page
    assert [qwen_coder.goal_cell(r, 1.2, None) for r in (1.194, 1.196, None)] == [
        "**1.19** (1.2)",
        "1.20 (1.2)",
        "",
    ]
    assert qwen_coder.goal_cell(1.0, 1.2, 0.5) == "**1.00** (1.2, before 0.50)"
    assert qwen_coder.goal_cell(1.0, None, 0.5) == "1.00 (before 0.50)"
    monkeypatch.setattr(measured, "ROOT", tmp_path)
    monkeypatch.setattr(qwen_coder, "PAGE", tmp_path / "page.md")
    qwen_coder.PAGE.write_text(page.replace(f"{ratio:.2f} (1.2", "9.99 (1.2"), encoding="utf-8")
    assert qwen_coder.main(["--check"]) == 1 and "page.md is not what" in capsys.readouterr().out
    assert qwen_coder.main([]) == 0 and qwen_coder.PAGE.read_text(encoding="utf-8") == page


def test_a_headline_is_the_median_of_all_cells_and_the_worst():
    """Counted here once more, from the records alone, for the README and for
    docs/performance.md.
    """
    found = [r for r in measured.records(measured.BUNDLED) if "oracle" not in r and r["batch"] == 1]
    medians = []
    for text, temperature in (("code", 0.0), ("code", 1.0), ("book", 1.0)):
        for context in (16384, 32768):
            cell = (text, temperature, context, figures.BEST)
            same = [
                r
                for r in found
                if (r["text_name"], r["temperature"], r["context"], r["kernels"]) == cell
            ]
            rates = {
                m: [r["tokens_per_s"] for r in same if r["method"] == m] for m in ("vegas", "plain")
            }
            medians.append(median(rates["vegas"]) / median(rates["plain"]))
    middle = f"{median(medians):.2f}x"
    worst = f"{min(medians):.2f}x"
    assert (
        f"| bundled model (5 M), 16K and 32K tokens | 6 (2) | {middle} ({worst}) |"
        in PAGES["docs/performance.md"]
    )
    assert f"| `vegas` {middle} | {worst} |" in README


def test_another_engine_is_compared_in_the_same_run():
    """The ratio after 30,000 tokens once more; speculation of other engines and other runs do not
    count.
    """
    found = [
        r
        for r in measured.records(qwen_coder.SOURCE)
        if r["task"] == "speed" and r["context"] == 30_000
    ]
    (run,) = {r["run"] for r in found if "peer" in r}
    rates = [
        [r["tokens_per_s"] for r in found if (r["run"], r["label"]) == (run, x)]
        for x in ("plain", "llama.cpp@fa=on")
    ]
    (beside,) = [b for b in summary.beside(qwen_coder.SOURCE) if b.context == 30_000]
    assert (beside.engine, beside.ratio) == ("llama.cpp", median(rates[0]) / median(rates[1]))
    assert summary.engine({"peer": "llama.cpp", "options": {"speculation": "ngram-mod"}}) is None


def test_the_best_method_is_one_method_that_was_measured_nearly_everywhere():
    cell = next(c for c in measured.cells(measured.BUNDLED) if c.label == "vegas")
    found = [
        replace(cell, label=x, context=n, speedup=s)
        for n in (1, 2)
        for x, s in (("a", 1.0), ("b", 1.1))
    ]
    assert summary.best([*found, replace(cell, label="c", context=1, speedup=9.0)]) == "b"
    assert summary.best(found, among=("a",)) == "a"


def test_llama_cpp_has_the_better_kind_of_attention_and_says_how_it_was_built():
    ours = {"label": "plain", "options": {}, "peer_build": None}
    build = {"package": "p-1", "commit": "c0ffee", "compiler": "GNU", "system_info": "AVX2 = 1"}
    theirs = {"peer": "llama.cpp", "options": {"speculation": "none"}, "peer_build": build}
    wheel = theirs | {
        "label": peers.WHEEL_NAME,
        "peer": peers.WHEEL_NAME,
        "peer_build": build | {"system_info": "SSE3 = 1"},
    }
    rows = [
        (ours, 30.0),
        (theirs | {"label": "llama.cpp@fa=on"}, 10.0),
        (theirs | {"label": "llama.cpp@fa=off"}, 20.0),
    ]
    shared = {
        "context": 1024,
        "prefill_s": 1.0,
        "repeat": 0,
        "time": "2026-12-01",
        "device": "x",
        "git_sha": "abc",
    }
    found = [
        {k: v for k, v in r.items() if v is not None}
        | shared
        | {"tokens_per_s": s, "command": "bench"}
        for r, s in [*rows, (wheel, 5.0)]
    ]
    text = peers.from_source(found)
    assert (
        "| llama.cpp | 20.0 (1.0), fa off |" in text and "| llama.cpp (wheel) | 5.0 (1.0) |" in text
    )
    assert (
        "Plain decoding is at least 1.5 times as fast" in text
        and "| *plain over llama.cpp's plain* | 1.5x |" in text
    )
    assert "| llama.cpp | source in p-1 (revision c0ffee), GNU | AVX2 |" in text
    assert "| llama.cpp (wheel) | the wheel of xllamacpp, for any processor | SSE3 |" in text


def test_the_table_of_test_files_is_from_their_docstrings(tmp_path):
    assert tests_page.main(["--check"]) == 0
    new = tmp_path / "core" / "test_new.py"
    new.parent.mkdir()
    new.write_text('"""One | line\nand its end.\n\nMore."""\n')
    text = tests_page.PAGE.read_text(encoding="utf-8")
    assert tests_page.page(text, tmp_path) != text
    assert [*tests_page.rows(tmp_path)] == [("`core/test_new.py`", "One \\| line and its end.")]
    new.write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"test_new\.py has no docstring"):
        tests_page.page(text, tmp_path)
