"""The style sheet of the page: light or dark as the reader's system is; wide tables scroll by
themselves.
"""

from __future__ import annotations

CSS = """
:root { --ground: #ffffff; --text: #1c1f23; --soft: #5c6670; --line: #d8dde2; --band: #f4f6f8; --link: #0b5cad;
  --mark: #fff3c4; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171a; --text: #e3e6e9; --soft: #9aa5b0; --line: #343b42; --band: #1d2125; --link: #7db9f5;
    --mark: #4a4012; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 78rem; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; line-height: 1.3; }
h3 { font-size: 1rem; margin: 2rem 0 .5rem; }
a { color: var(--link); text-underline-offset: .2em; }
code { font-size: .85em; background: var(--band); padding: .1em .3em; border-radius: 3px; }
nav ol { columns: 22rem; column-gap: 2.5rem; padding-left: 2rem; font-size: .9rem; }
nav summary { cursor: pointer; }
.plots { columns: 22rem; column-gap: 1rem; margin-bottom: 1rem; }
figure { margin: 0 0 1rem; break-inside: avoid; max-width: 28rem; background: #ffffff;
  border: 1px solid var(--line); border-radius: 6px;
  padding: .5rem; }
figure svg { display: block; width: 100%; height: auto; }
figure a:hover { filter: brightness(.6); }
.scroll { overflow-x: auto; width: fit-content; max-width: 100%; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3rem .4rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { background: var(--band); font-weight: 600; white-space: normal; }
tr:last-child td { border-bottom: 0; }
th:nth-child(2), td:nth-child(2) { text-align: left; }
td a { color: inherit; text-decoration: underline dotted var(--soft); }
td a:hover { color: var(--link); text-decoration: underline; }
.notes { font-size: .875rem; color: var(--soft); padding-left: 1.2rem; }
.records th, .records td { text-align: left; }
.records th { font-weight: 400; padding-top: .6rem; }
.heads td { color: var(--soft); }
dl.run { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .875rem;
  border-left: 3px solid var(--line); padding-left: .8rem; margin: .75rem 0; }
dl.run dt { color: var(--soft); }
dl.run dd { margin: 0; }
:target { background: var(--mark); scroll-margin-top: 1rem; }
tbody:target th { background: var(--mark); }
@media (max-width: 40rem) { body { padding: .75rem; } h1 { font-size: 1.35rem; } h2 { font-size: 1.05rem; }
  dl.run { display: block; } }
@media print { .scroll { overflow: visible; } nav { display: none; } }
"""
