"""The list of figures, and the line of every curve: the same colours in all figures and reports.

The colours are those of Okabe and Ito, which the colour-blind can tell apart. No matplotlib here.
"""

from collections.abc import Iterable

from pdml.config.methods import (
    BLACK,
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    METHODS,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    SOLID,
    Line,
)

FIGURES: dict[str, str] = {
    "curves": "return over steps: mean over seeds with 95 % interval, and published points",
    "seeds": "return over steps, one line per seed, and published points",
    "errors": "one-step model error on fresh steps of the current policy and of all so far (--diagnose)",
    "compounding": "model error over the depth of a rollout (--diagnose), at steps --at",
    "weights": "weights of historical policies at steps --at, beside the paper's",
    "heatmap": "weight of every block, policy by step, for whole runs",
    "tsne": "states that policies visited, in the plane (after pdml analyse tsne)",
    "ablation": "PDML's weights on MBPO or DHMBPO, used for model and starts, for one of them, or not at all",
    "rates": "PDML, on MBPO or DHMBPO, by mixture.rate",
    "horizons": "DHMBPO, with or without PDML's weights, by double.far and double.near",
    "behaviour": "what may explain returns: model error, standing still, effective size, returns kept, critics",
    "time": "training time relative to MBPO's, here and in the paper",
    "thresholds": "steps until each seed reaches a return",
    "aggregate": "interquartile mean, optimality gap and probability of improvement over tasks",
}
"""Every figure in one line; `pdml.reporting.figures.KINDS` says how it is made."""

ENDINGS = ("csv", "png", "pdf")
"""The files of a figure: its numbers, and its drawing twice."""

STEPS_TEXT = "real steps after warm-up"
"""Name of the axis of steps."""

DASH_DOTTED, FINE = "8 2 2 2", "1 3"

MARKERS = {SOLID: "o", DASHED: "^", DOTTED: "s", DASH_DOTTED: "D", FINE: "v"}
"""The shape of a curve's dots, by its dashes: curves of one colour differ in these."""

SPARE_LINES = [
    Line(color, dash) for dash in (DASH_DOTTED, FINE) for color in (RED, BLUE, GREEN, PURPLE, BLACK, ORANGE, SKY)
]
"""For runs whose settings differ from their method's defaults."""

SEED_LINES = [
    Line(color, dash) for dash in (SOLID, DASHED, DOTTED) for color in (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK)
]
"""For the seeds of one curve."""


def lines(curves: Iterable[str]) -> dict[str, Line]:
    """Return the line of each curve: that of its method, or a spare one."""
    result: dict[str, Line] = {}
    spare = 0
    for curve in dict.fromkeys(curves):
        if curve in METHODS:
            result[curve] = METHODS[curve].line
        else:
            result[curve] = SPARE_LINES[spare % len(SPARE_LINES)]
            spare += 1
    return result
