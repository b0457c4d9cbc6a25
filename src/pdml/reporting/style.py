"""How methods look, the same in every figure and report: the colours of Okabe and Ito, safe for the colour-blind."""

from collections.abc import Iterable
from typing import NamedTuple

FIGURES: dict[str, str] = {
    "curves": "returns over steps: mean over seeds with 95 % interval, and published points",
    "seeds": "returns over steps, every seed by itself, and published points",
    "errors": "the model's error on fresh steps of the current policy and of all so far (--diagnose)",
    "compounding": "the model's error over the depth of a rollout (--diagnose), at steps --at",
    "weights": "what historical policies weigh, at steps --at, and the paper's plot of it",
    "heatmap": "what every block weighs, policy by step, for a whole run",
    "tsne": "where policies went, in the plane (after pdml analyse tsne)",
    "ablation": "PDML's weights, on MBPO or DHMBPO, used for both, for the model, for the starts, for nothing",
    "rates": "PDML, on MBPO or DHMBPO, by mixture.rate",
    "horizons": "DHMBPO, with PDML's weights or without, by double.far and double.near",
    "time": "training time, beside MBPO's and the paper's",
    "thresholds": "steps to a return, seed by seed",
    "aggregate": "interquartile mean, optimality gap, probability of improvement over tasks",
}
"""Every figure in one line; `pdml.reporting.figures.KINDS` has how it is made."""

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
SOLID, DASHED, DOTTED = "", "6 3", "2 2"


class Look(NamedTuple):
    """Colour and dashes of a line; dashes as SVG writes them, lengths of line and gap."""

    color: str
    dash: str


METHOD_LOOKS: dict[str, Look] = {
    "pdml": Look(BLUE, SOLID),
    "mbpo": Look(ORANGE, SOLID),
    "pdml-model-only": Look(SKY, SOLID),
    "pdml-starts-only": Look(SKY, DASHED),
    "decay-mbpo": Look(ORANGE, DASHED),
    "per-mbpo": Look(GREEN, DASHED),
    "recall-mbpo": Look(GREEN, DOTTED),
    "maper-mbpo": Look(PURPLE, DASHED),
    "maper-mbpo-model": Look(PURPLE, DOTTED),
    "ampo": Look(GREEN, SOLID),
    "vagram": Look(PURPLE, SOLID),
    "dhmbpo": Look(RED, DASHED),
    "pdml-dhmbpo": Look(BLACK, DASHED),
    "redq": Look(RED, SOLID),
    "sac": Look(BLACK, SOLID),
}

SPARE = [Look(color, dash) for dash in ("8 2 2 2", "1 3") for color in (RED, BLUE, GREEN, PURPLE, BLACK, ORANGE, SKY)]
"""For runs whose settings differ from their method's defaults."""

SEED_LOOKS = [
    Look(color, dash) for dash in (SOLID, DASHED, DOTTED) for color in (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK)
]
"""For the seeds of one curve."""


def looks(curves: Iterable[str]) -> dict[str, Look]:
    """Return the look of each curve: its method's own, or one to spare."""
    result, spare = {}, 0
    for curve in dict.fromkeys(curves):
        if curve in METHOD_LOOKS:
            result[curve] = METHOD_LOOKS[curve]
        else:
            result[curve] = SPARE[spare % len(SPARE)]
            spare += 1
    return result
