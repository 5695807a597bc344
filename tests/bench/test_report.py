"""Reports on disk: plots and pages show the numbers of the records, link to them, and let no record
become markup.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from longdraft.bench import grouping, plots, report, report_files
from longdraft.bench.peers.choice import PEERS as ENGINES
from longdraft.bench.peers.llama_wheel import WHEEL
from longdraft.bench.plots import acceptance, speed, style, time
from longdraft.bench.plots.svg import svg
from longdraft.bench.records import load
from longdraft.cli import main
from longdraft.errors import InputError
from longdraft.methods import CONTROLS, METHODS

FOLDER = Path(__file__).parents[2] / "benchmarks" / "records"
PEERS = "2026-11-22-cpu-peers"
BUDGETS = "2026-11-21-budgets"
STEPS = "2026-11-22-prefetch-steps-smollm2"
EVIL = "$\\frac$</text>--><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x00\x1b"


def records(name: str, count: int | None = None) -> list[dict]:
    return load([FOLDER / f"{name}.jsonl.gz"])[:count]


def everything() -> list[dict]:
    """Two repeats of plain decoding, methods and other engines at two contexts; budgets; steps."""
    peers = [r for r in records(PEERS) if r["repeat"] < 2 and r["context"] in (1024, 4096)]
    return peers + records(BUDGETS) + records(STEPS)


class Page(HTMLParser):
    """The tags, ids and links of a page, and the cells of its tables with the links in them."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[SimpleNamespace]] = []
        self.groups: dict[str, list[int]] = {}  # rows by the id of their tbody
        self.text = []
        self.inside = ""
        self.cell = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {k: v or "" for k, v in attrs}
        self.tags.add(tag)
        self.attributes |= values.keys()
        self.ids += [values["id"]] if "id" in values else []
        found = [
            v for k, v in values.items() if k in ("href", "xlink:href", "src") and tag != "link"
        ]
        self.links += found
        if tag == "tbody":
            self.inside = values.get("id", "")
        if tag == "tr":
            self.rows.append([])
            self.groups.setdefault(self.inside, []).append(len(self.rows) - 1)
        if tag in ("td", "th"):
            self.cell = SimpleNamespace(text="", links=[])
            self.rows[-1].append(self.cell)
        if tag == "a" and self.cell:
            self.cell.links += found

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.cell = None

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.cell:
            self.cell.text += data


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> SimpleNamespace:
    out = tmp_path_factory.mktemp("report")
    files = report_files.write(everything(), out)
    return SimpleNamespace(
        files=files, out=out, page=Page((out / "report.html").read_text(encoding="utf-8"))
    )


def number(cell: SimpleNamespace) -> float:
    return float(cell.text.split()[0])


@pytest.mark.full
def test_every_number_links_to_the_records_it_is_of(written):
    """The medians of a table are computed again from the records that its cells link to."""
    page = written.page
    checked = 0
    tables = report.sections(everything())
    listed = {i: [page.rows[k] for k in rows] for i, rows in page.groups.items() if i}
    for row in (page.rows[k] for k in page.groups[""]):
        if not row[0].text.isdecimal():
            continue
        shown = [cell for cell in row[2:] if cell.text]
        (to,) = {link for cell in shown for link in cell.links}
        assert all(cell.links for cell in shown)
        about, heads, *group = listed[to.removeprefix("#")]
        assert about[0].text.startswith(f"{row[0].text}, {row[1].text}")
        names = [cell.text for cell in heads]
        if "tokens/s" in names:
            rates = [float(r[names.index("tokens/s")].text) for r in group]
            assert number(row[2]) == pytest.approx(median(rates), abs=0.06)
            assert row[-1].text == f"{len(group)}"
        elif names[1] == "accepted length":
            assert number(row[2]) == pytest.approx(float(group[0][1].text), abs=0.0006)
        else:
            assert number(row[2]) == pytest.approx(
                median(map(float, group[0][1].text.split())), abs=0.0006
            )
        checked += 1
    assert checked == sum(len(s.rows) for s in tables) > 80


@pytest.mark.full
def test_records_are_listed_with_their_run_and_line(written):
    page = written.page
    source = everything()
    shown = [
        row
        for i in page.groups
        if i
        for row in (page.rows[k] for k in page.groups[i])
        if row[0].text[1:].isdecimal()
    ]
    assert sorted(row[0].text for row in shown) == sorted(
        f"r{i}" for i in range(1, len(source) + 1)
    )
    by_name = {row[0].text: row for row in shown}
    assert [by_name[f"r{i}"][-1].text for i in range(1, len(source) + 1)] == [
        r["where"] for r in source
    ]
    text = "".join(page.text)
    for r in source:
        assert r["command"] in text and r["git_sha"] in text and r["device"] in text
        assert f"torch {r['versions']['torch']}" in text


def test_a_page_stands_alone_and_its_links_lead_somewhere(written):
    page = written.page
    assert len(set(page.ids)) == len(page.ids)
    assert {link[0] for link in page.links} == {"#"}
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert not page.tags & {"script", "iframe", "img", "object", "embed"}
    text = (written.out / "report.html").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\"' <]*", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "url(" not in text.replace("url(#", "") and "@import" not in text


def hostile(value: object, key: str = "") -> object:
    """Every text that a record may choose, replaced."""
    if isinstance(value, dict):
        return {
            k + EVIL * (key in ("versions", "environment")): hostile(v, k) for k, v in value.items()
        }
    if isinstance(value, list):
        return [hostile(v, key) for v in value]
    plain = key in ("task", "git_sha", "where") or value in ("plain", "none")
    return value if plain or not isinstance(value, str) else value + EVIL


@pytest.mark.full
def test_what_records_say_stays_text(tmp_path):
    source = [hostile(r) for r in everything() if r["task"] != "steps"]  # a step has a fixed name
    for path in report_files.write(source, tmp_path):
        if path.suffix == ".svg":
            ElementTree.fromstring(path.read_text(encoding="utf-8"))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not page.tags & {"script", "img"} and "onerror" not in page.attributes
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert "<script>alert(1)</script>" in "".join(page.text)
    assert "&lt;script&gt;alert(1)" in text and "<script" not in text


def test_without_matplotlib_there_are_tables_and_a_line(tmp_path, monkeypatch, capsys, written):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    file = FOLDER / f"{STEPS}.jsonl.gz"
    assert main(["report", str(file), "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(tmp_path / "report.md"), str(tmp_path / "report.html")]
    assert err == f"{plots.MISSING}\n" and "longdraft[plots]" in err
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "table" in page.tags and "svg" not in page.tags and plots.MISSING in "".join(page.text)
    assert not (tmp_path / "plots").exists()


@pytest.mark.full
def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write to"):
        report_files.write(records(STEPS), tmp_path / "file")


# What follows needs matplotlib.


@pytest.mark.full
def test_only_plots_of_the_records_are_drawn_and_old_ones_go(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "plots").mkdir()
    for name in ("07-speedup.svg", "mine.svg", "07-mine.svg"):
        (tmp_path / "plots" / name).touch()
    report_files.write(records(STEPS), tmp_path)
    found = sorted(p.name for p in (tmp_path / "plots").iterdir())
    assert found == ["01-step.svg", "02-step.svg", "07-mine.svg", "mine.svg"]


def test_each_kind_of_record_has_its_plots(written):
    pytest.importorskip("matplotlib")
    names = [p.name for p in written.files[2:]]
    assert {"01-speedup.svg", "01-peers.svg", "01-positions.svg", "01-time.svg"} <= set(names)
    assert [n for n in names if n.endswith("step.svg")] and len(
        [n for n in names if n.endswith("budget.svg")]
    ) == 2
    oracle = grouping.numbered([r | {"oracle": 3.0} for r in records(PEERS, 12)])
    assert acceptance.by_position(oracle) is None
    assert speed.beside_peers([r for r in oracle if not grouping.by_peer(r)]) is None


def points(axes) -> set[tuple[float, float]]:
    return {
        (round(float(x), 6), round(float(y), 6))
        for line in axes.get_lines()
        if line.get_url()
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }


def test_points_are_the_medians_of_the_records():
    pytest.importorskip("matplotlib")
    found = report.sections(records(PEERS))[0].records
    (axes,) = speed.speedup(found).axes
    for context, label, same in grouping.cells(found):
        gain = round(median(grouping.ratios(same, found, "speedup")), 6)
        drawn = label != "plain" and not grouping.by_peer(same[0])
        near = any(y == gain and abs(x / context - 1) < 0.1 for x, y in points(axes))
        assert near is drawn
    (axes,) = speed.beside_peers(found).axes
    rates = {
        round(median(r["tokens_per_s"] for r in same), 6) for _, _, same in grouping.cells(found)
    }
    assert {x for x, _ in points(axes)} == rates


def test_acceptance_and_budgets_are_those_of_the_records():
    pytest.importorskip("matplotlib")
    found = report.sections(records(BUDGETS))[0].records
    (axes,) = acceptance.by_position(found).axes
    shares = {
        (i + 1.0, round(p, 6))
        for r in found
        for i, p in enumerate(r["acceptance_per_position"])
        if p
    }
    assert points(axes) == shares
    # a repeat that drafted nothing accepted nothing
    idle = found[0] | {"acceptance_per_position": []}
    (axes,) = acceptance.by_position([found[0], idle]).axes
    assert points(axes) == {
        (i + 1.0, p / 2) for i, p in enumerate(found[0]["acceptance_per_position"])
    }
    (axes,) = acceptance.by_budget(found).axes
    known = {(256, 3.225), (512, 3.225), (1024, 3.45), (2048, 3.375), (256, 3.425)}
    assert points(axes) == {(100 * keys / 4096, length) for keys, length in known}
    assert acceptance.by_budget([r for r in found if r["options"].get("budget") == 256]) is None
    r = {
        "context": 8192,
        "label": "vegas@keep_ratio=0.02@gamma=4",
        "options": {"keep_ratio": 0.02, "min_budget": 256},
    }
    assert (acceptance.budget(r), acceptance.without_budget(r)) == (256, "vegas@gamma=4")
    # names in older records
    assert acceptance.budget(r | {"options": {"ratio": 0.07, "floor": 256}}) == 573


def test_bars_add_up_to_the_time():
    pytest.importorskip("matplotlib")
    found = report.sections(records(STEPS))[0].records
    (axes,) = time.of_a_step(found).axes
    ms = {(r["context"], r["label"]): median(r["ms"]) for r in found}
    whole = (
        7 * ms[1024, "draft at 7%"]
        + ms[1024, "verify 8 rows, scores kept"]
        + ms[1024, "choose and copy 7%"]
    )
    assert [t.get_text() for t in axes.texts][:2] == [f"{ms[1024, 'plain']:.3g}", f"{whole:.3g}"]


@pytest.mark.parametrize("name", [*METHODS, *CONTROLS, *ENGINES, WHEEL])
def test_every_method_and_engine_has_a_color(name):
    """In one plot the methods without one would look alike."""
    assert style.color(name) != style.OTHER
    assert style.color("a method that there is not") == style.OTHER


@pytest.mark.full
def test_a_method_has_one_color_and_losses_are_shaded():
    pytest.importorskip("matplotlib")
    assert style.color("vegas@gamma=4") == style.color("vegas") != style.color("suffix")
    assert style.looks(["suffix", "vegas"])["vegas"] == style.looks(["vegas", "plain"])["vegas"]
    assert len(set(style.looks([f"vegas@gamma={i}" for i in range(8)]).values())) == 8
    found = report.sections(records(PEERS))[0].records
    text = svg(speed.speedup(found))
    assert style.LOSS in text
    assert svg(speed.speedup(found)) == text and "<dc:date>" not in text


def test_a_plot_beside_the_page_links_to_it(written):
    pytest.importorskip("matplotlib")
    drawn = (written.out / "plots" / "01-speedup.svg").read_text(encoding="utf-8")
    targets = set(re.findall(r'xlink:href="\.\./report\.html#(g\d+)"', drawn))
    assert targets and targets <= set(written.page.ids)
