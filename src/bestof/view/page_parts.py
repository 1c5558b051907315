"""The frame, the style and the script of the pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from bestof.view.quantity import plural

STYLE = """\
.bestof { color-scheme: light dark; --line: #8884; --soft: #656d76; --good: #1a7f37; }
.bestof { --bad: #c62828; --wait: #8a5d00; --fill: #0969da; }
@media (prefers-color-scheme: dark) { .bestof { --soft: #9198a1; --good: #4ac26b; --bad: #ff7b72;
  --wait: #d4a72c; --fill: #58a6ff; } }
.bestof .scroll { overflow-x: auto; }
.bestof table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.bestof th, .bestof td { padding: .25rem .6rem; text-align: left; vertical-align: top; }
.bestof #rows { width: 100%; } .bestof #rows > tbody > tr { border-top: 1px solid var(--line); }
.bestof #rows > tbody > tr > th { font-weight: 600; overflow-wrap: anywhere; min-width: 12rem; }
.bestof #rows > tbody > tr > td:last-child { width: 52%; max-width: 0; }
.bestof details table { display: block; overflow-x: auto; font-size: .92em; }
.bestof details td, .bestof details th { padding: .15rem .45rem; }
.bestof details td:nth-child(2) { white-space: nowrap; }
.bestof thead th { color: var(--soft); font-weight: normal; }
.bestof .number { text-align: right; white-space: nowrap; }
.bestof .soft { color: var(--soft); } .bestof .bad td { color: var(--bad); }
.bestof .chosen, .bestof .chosen td { color: var(--good); font-weight: 600; }
.bestof .unsettled, .bestof .noisy { color: var(--wait); } .bestof .slower { color: var(--bad); }
.bestof .mark { border: 1px solid; border-radius: .6rem; padding: 0 .4rem; font-size: .8em; }
.bestof summary { cursor: pointer; overflow-wrap: anywhere; }
.bestof h3 { font-size: 1em; margin: .6rem 0 .2rem; overflow-wrap: anywhere; }
.bestof dd { margin-left: 1.5rem; overflow-wrap: anywhere; } .bestof svg rect { fill: var(--fill); }
.bestof svg path { stroke: currentColor; fill: none; } .bestof details p { margin: .3rem 0; }
/* page */
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0; }
main { max-width: 76rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
summary > h2 { display: inline; border: 0; }
.tree, .words { margin-top: 2rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .7rem; }
.cards div { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.cards span { display: block; color: var(--soft); font-size: .85em; }
.cards b { font-size: 1.4rem; }
.controls { display: flex; flex-wrap: wrap; gap: .6rem 1rem; align-items: center; }
.controls { margin: .5rem 0; } .controls output { color: var(--soft); }
input, select, button { font: inherit; }
thead th button { all: unset; cursor: pointer; }
thead th button:focus-visible, summary:focus-visible, .scroll:focus-visible {
  outline: 2px solid var(--fill); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " ▲" / ""; }
th[aria-sort=descending] button::after { content: " ▼" / ""; }
.tree ul { list-style: none; margin: 0; padding-left: 1.3rem; border-left: 1px solid var(--line); }
.tree > ul { padding-left: 0; border: 0; } li { overflow-wrap: anywhere; }
dt { font-weight: 600; } .bestof .bars th { font-weight: normal; overflow-wrap: anywhere; }
.line { width: 100%; height: auto; } .line text { fill: var(--soft); font-size: 12px; }
.line .trials { stroke: var(--wait); stroke-dasharray: 6 3; }
.line .decisions { stroke: var(--good); }
.line path { stroke-width: 2; } .line .axis { stroke: var(--line); stroke-width: 1; }
@media (max-width: 40rem) {
  #rows, #rows > tbody, #rows > tbody > tr, #rows > tbody > tr > * { display: block; }
  #rows > thead { display: none; } #rows > tbody > tr { padding: .6rem 0; }
  .bestof #rows > tbody > tr > * { text-align: left; min-width: 0; padding: .1rem 0; }
  #rows > tbody > tr > td.number { display: inline-block; margin-right: 1rem; }
  #rows > tbody > tr > td.number:empty { display: none; }
  #rows > tbody > tr > td.number::before { content: attr(data-label) " "; color: var(--soft); }
  .bestof #rows > tbody > tr > td:last-child { width: auto; max-width: none; }
}
@media print { .controls { display: none; } }
"""

SCRIPT = """\
'use strict';
const table = document.getElementById('rows');
if (table) {
  const body = table.tBodies[0], rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const part = id => document.getElementById(id);
  const texts = new Map(rows.map(row => [row, row.textContent.toLowerCase()]));
  const key = (row, place) => {
    const cell = row.cells[place];
    return cell.dataset.value === undefined ? cell.innerText.toLowerCase() : +cell.dataset.value;
  };
  heads.forEach((head, place) => head.firstElementChild.addEventListener('click', () => {
    const numbers = head.classList.contains('number');
    const now = head.getAttribute('aria-sort');
    const up = now ? now === 'descending' : !numbers;
    heads.forEach(one => one.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const keyed = rows.map(row => [key(row, place), row]);
    keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1));
    body.append(...keyed.map(one => one[1]));
  }));
  const filter = () => {
    const words = part('filter').value.toLowerCase().split(/\\s+/).filter(Boolean);
    const operation = part('operation').value, state = part('state').value;
    let shown = 0;
    for (const row of rows) {
      const fits = words.every(word => texts.get(row).includes(word))
        && (!operation || row.dataset.operation === operation)
        && (!state || row.dataset.state.split(' ').includes(state));
      row.hidden = !fits;
      row.style.display = fits ? '' : 'none';
      shown += fits;
    }
    part('count').value = shown === 1 ? '1 row' : shown + ' rows';
  };
  for (const id of ['filter', 'operation', 'state']) part(id).addEventListener('input', filter);
  part('filter').form.addEventListener('submit', event => event.preventDefault());
  part('unfold').addEventListener('click', () => {
    const open = part('unfold').textContent === 'open all';
    for (const one of body.querySelectorAll('td > details')) one.open = open;
    part('unfold').textContent = open ? 'close all' : 'open all';
  });
  document.addEventListener('keydown', event => {
    if (event.key === '/' && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      event.preventDefault();
      part('filter').focus();
    }
  });
}
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Return a page of these parts below its title. It needs no other file.

    The script sorts, filters and folds the table `rows`; the page is complete without it.
    """
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>",
            '<body class="bestof">\n<main>',
            f"<h1>{escape(title)}</h1>",
            *parts,
            f"</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>",
        )
    )


def controls(
    hint: str, kind: str, kinds: Iterable[str], states: Sequence[tuple[str, str]], rows: int
) -> Iterator[str]:
    """Yield the controls that the script reads, for a table `rows` of so many rows.

    hint: what the text of a row holds. kind: what `data-operation` of a row is called, and `kinds`
    its values. states: the values of `data-state`, with the text of each.
    """
    yield '<form class="controls" role="search">'
    yield f'<label>filter <input id="filter" type="search" placeholder="{escape(hint)}" '
    yield 'aria-keyshortcuts="/" autocomplete="off"></label>'
    yield f'<label>{kind} <select id="operation"><option value="">all</option>'
    for one in dict.fromkeys(kinds):
        yield f"<option>{escape(one)}</option>"
    yield '</select></label>\n<label>show <select id="state"><option value="">all</option>'
    yield "".join(f'<option value="{value}">{text}</option>' for value, text in states)
    yield "</select></label>"
    yield '<button type="button" id="unfold">open all</button>'
    yield f'<output id="count" aria-live="polite">{plural(rows, "row")}</output></form>'
