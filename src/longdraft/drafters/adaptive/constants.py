"""The constants of adaptive drafting, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from longdraft.core import UNBOUNDED


@dataclass(frozen=True)
class Constants:
    """The numbers by which drafts are priced, expected and chosen.

    "Simulated" marks those that benchmarks/adaptive_simulation.py has set (docs/log). All costs are
    in plain decoding steps.
    """

    # Prices ---------------------------------------------------------------------------------------

    # Drafts of a drafter without its own limit are no deeper: acceptance rarely reaches so far.
    max_levels: int = 32
    # Verification is predicted for these numbers of drafted nodes and interpolated between them.
    knots: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    # How fast measured plain steps correct all predictions: the machine's speed changes quickly.
    common_rate: float = 0.2
    # How fast measurements correct one part alone: a part's ratio to a plain step hardly changes.
    part_rate: float = 0.05
    # The same for drafts whose predictions are rough, which have more to correct.
    rough_rate: float = 0.1
    # A part's first measurements count more, 1 / (this + their number): little is known by then.
    first_measurements: int = 2
    # This many measurements correct all predictions alike where no plain step has been measured.
    unanchored_measurements: int = 8
    # A plain step tells how fast the machine is for this many measurements of other parts.
    anchored_measurements: int = 128
    # A measurement counts as at most this many times the prediction: another process may run.
    outlier: float = 2.0
    # The same for a part's first measurements, since the prediction may be far off.
    first_outlier: float = 4.0
    # A correction of one part multiplies it by at most this, so that no error lasts forever.
    max_correction: float = 10.0
    # Costs are predicted again once the rows are longer by this share: they change slowly.
    growth: float = 1 / 16
    # Or once measurements have changed the ratio of predictions by this share.
    moved: float = 0.03
    # Drafts after which a plain step is timed, if none was lately: it anchors all other times.
    anchor_after: int = 4
    # One plain step in this many is timed while drafting is off; the others cost microseconds.
    timed_every: int = 8

    # Acceptance -----------------------------------------------------------------------------------

    # Weight of a draft's outcome one draft later (simulated).
    fade: float = 0.98
    # Drafted tokens that the usual acceptance counts as (simulated).
    usual_weight: float = 3.0
    # Drafted tokens of one depth that the mean over all depths counts as (simulated).
    mean_weight: float = 4.0
    # The share refused of w choices falls like w ** -this: from 0.5 of one to 0.25 of four.
    width_exponent: float = 0.5
    # Limits of the nodes per level among which the width is chosen: each doubles the one before.
    widths: tuple[int, ...] = (1, 2, 4, 8, UNBOUNDED)

    # Choice of a draft ----------------------------------------------------------------------------

    # A draft must promise this many times plain decoding's rate: predictions err (simulated).
    margin: float = 1.02
    # Beside what can be copied, it must promise this many times what the copy alone does: a copy
    # costs next to nothing.
    copy_margin: float = 1.05
    # How fast the gain of drafts beside copies is learned: copying begins and ends within a text.
    gain_rate: float = 0.15
    # More for each further row: what many rows cost together is predicted less well (simulated).
    margin_per_row: float = 0.02
    # Tokens drafted to test whether drafting that was turned off pays again (simulated).
    glance_depth: int = 1
    # Drafting stays off for at least this many plain steps per step that it has lost (simulated).
    pause_per_debt: float = 8
    # The smallest loss that counts for a pause, in plain steps (simulated).
    min_debt: float = 0.1
    # What was seen before drafting was turned off counts this much less (simulated).
    fade_at_rest: float = 0.5
    # Plain steps until drafting is tried where not even right drafts would pay (simulated).
    longest_pause: int = 64
    # The share of acceptance that each step of a view's age costs (simulated).
    aging: float = 0.04
    # The steps for which a view may stay.
    view_ages: tuple[int, ...] = (1, 2, 4, 8)
    # Drafts between two decisions how long a view stays: acceptance must have been seen.
    renew_every: int = 16
    # Deeper levels are not considered where a smaller share of drafts than this is accepted so far.
    rare: float = 0.01

    # Budget ---------------------------------------------------------------------------------------

    # Plain steps that may be lost, times the root of the tokens since drafting last had gained:
    # with `early`, text that drafts badly costs 4% of 96 tokens and 2% of 512 at most.
    allowed: float = 0.31
    # Tokens that count from the beginning, so that something may be tried at once.
    early: float = 16
    # The largest gain, in plain steps, that may be lost again (simulated).
    credit: float = 8.0

    # Several drafters -----------------------------------------------------------------------------

    # Steps between two comparisons of forecasts while one drafts: acceptance changes slowly.
    compare_every: int = 8
    # The same while drafting is off: nothing new is seen, and steps should cost microseconds.
    compare_rarely: int = 64
    # Seconds that a comparison takes for each drafter.
    compare_s: float = 1e-3
    # The share of all time that comparisons may take.
    compare_share: float = 0.01
    # Another drafter must promise this many times the rate of the one in use: switching costs.
    better: float = 1.1
    # The share of a forecast that counts where costs are rough and the drafter is not in use.
    doubts: float = 0.85
    # What an unused drafter has seen counts this much less after `compare_every` steps.
    forget: float = 0.9


DEFAULTS = Constants()
