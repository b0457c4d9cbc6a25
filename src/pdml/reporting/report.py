"""The report: one self-contained html page about runs. Python writes texts, tables and numbers; `page` draws them."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from pdml.core.errors import UserError
from pdml.core.files import replaced
from pdml.core.version import package_version
from pdml.reporting import sections
from pdml.reporting.read import Run
from pdml.reporting.run_table import runs_table
from pdml.reporting.sections import HEAT_BYTES, Picture, Section, heat_bytes, joined
from pdml.reporting.style import lines


def write(
    runs: Sequence[Run], out: Path, pictures: Mapping[Path, Picture | str], problems: list[str], reload: int = 0
) -> int:
    """Write the page; return its size in bytes.

    Args:
        pictures: By run directory, the policy at work, or why it is not shown; see `pdml.studies.strips`.
        problems: What could not be read so far; what is found on the way is added to it.
        reload: Seconds after which an open page loads itself again; 0: never.
    """
    problems += [problem for run in runs for problem in run.problems]
    whole = page(runs, pictures, problems, reload)
    problems += whole.problems
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if reload:  # a browser may be reading the page
            with replaced(out) as partial:
                partial.write_text(whole.html, encoding="utf-8")
        else:
            out.write_text(whole.html, encoding="utf-8")
    except OSError as error:
        raise UserError(f"out = '{out}': cannot be written ({error.strerror})") from None
    return len(whole.html.encode())


def page(
    runs: Sequence[Run], pictures: Mapping[Path, Picture | str], problems: Sequence[str] = (), reload: int = 0
) -> Section:
    """Return the whole page; its `problems` are those found on the way.

    Args:
        pictures: By run directory, the policy at work, or why it is not shown.
        problems: What could not be read so far.
        reload: Seconds after which the page loads itself again; 0: never.
    """
    envs = sorted({run.config.env for run in runs})
    body = _by_environment([[run for run in runs if run.config.env == env] for env in envs], pictures)
    shown = lines(run.label for run in runs)
    methods = [{"name": curve, "label": curve, "color": line.color, "dash": line.dash} for curve, line in shown.items()]
    data = json.dumps(_finite_or_null({"methods": methods, "panels": list(body.panels)}), allow_nan=False)
    data = data.replace("<", "\\u003c")  # no text can end the script
    source = files("pdml.reporting") / "page"
    named = list(dict.fromkeys(run.config.method for run in runs))
    title = f"{', '.join(envs)}: {', '.join(named) if len(named) <= 3 else f'{len(named)} methods'}"
    again = f'<meta http-equiv="refresh" content="{reload}">\n' if reload else ""
    html = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
{again}<title>{escape(title)}</title><style>{(source / "page.css").read_text()}</style></head><body>
<h1>{escape(title)}</h1>
<p class="lead">{_counts(runs)}</p>
<div id="legend"></div>
{body.html}
{_damaged([*problems, *body.problems])}
<footer>Written by pdml {package_version("pdml")} from the csv files of the runs. Steps count from the end of the
warm-up. Bands are 95 % intervals (Student) of the mean over seeds. Hollow points are published, and shown as far as the
runs go. Those of the paper have a horizontal bar: the bin that a point may belong to. Panels with DHMBPO's own points
say more about them.</footer>
<script type="application/json" id="data">{data}</script>
<script>{(source / "page.js").read_text()}</script>
</body></html>
"""
    return body._replace(html=html)


def _by_environment(by_env: Sequence[Sequence[Run]], pictures: Mapping[Path, Picture | str]) -> Section:
    """Return the sections of all environments, which share the room for heat maps."""
    result: list[Section] = []
    room = HEAT_BYTES
    for runs in by_env:
        section = _environment(runs, pictures, room)
        room -= heat_bytes(section)
        result.append(section)
    return joined(result)


def _environment(runs: Sequence[Run], pictures: Mapping[Path, Picture | str], room: int) -> Section:
    """Return all about one environment.

    Args:
        room: Bytes that its heat maps may take.
    """
    env = runs[0].config.env
    panels = joined(
        [sections.return_panel(env, runs), sections.error_panels(env, runs), sections.prior_panel(env, runs)],
        '<div class="panels">',
        "</div>\n",
    )
    whole = joined(
        [
            sections.final_table(runs),
            panels,
            sections.stability_panels(env, runs),
            sections.heat_maps(env, runs, room),
            sections.pictures_of(runs, pictures),
            sections.time_table(runs),
            sections.differences_table(runs),
            runs_table(runs),
        ],
        before=f'<h2 id="{escape(env)}">{escape(env)}</h2>\n',
    )
    listed = "".join(f"<li>{escape(note)}</li>" for note in dict.fromkeys(whole.notes))
    if not listed:
        return whole
    notes = f'<details><summary>Notes on these numbers</summary><ul class="note">{listed}</ul></details>'
    return whole._replace(html=whole.html + notes)


def _counts(runs: Sequence[Run]) -> str:
    """Say how many runs are done, unfinished and failed."""
    counts = {status: sum(run.status == status for run in runs) for status in ("done", "unfinished", "failed")}
    parts = [sections.badge(status, f"{count} {status}") for status, count in counts.items() if count]
    return f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: {', '.join(parts)}."


def _damaged(problems: Sequence[str]) -> str:
    """List what could not be read."""
    listed = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    return f"<h2>Damaged files</h2><ul>{listed}</ul>" if problems else ""


def _finite_or_null(value: Any) -> Any:
    """Replace numbers that are not finite by null, which the page leaves out."""
    if isinstance(value, dict):
        return {key: _finite_or_null(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite_or_null(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
