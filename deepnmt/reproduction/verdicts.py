"""Whether the results bear out a claim."""

from collections.abc import Mapping, Sequence

from deepnmt.reproduction.experiment import Claim, Experiment
from deepnmt.reproduction.results import ArmResult, Figure, on_shared_seeds


def judge(claim: Claim, arms: Sequence[ArmResult], experiment: Experiment, p_values: Mapping[str, float]) -> str:
    by_label = {arm.arm.label: arm for arm in arms}
    if claim.fails:
        result = by_label.get(claim.fails)
        if result is None or not result.trained:
            return "not run"
        return f"{_verdict(result.has_failed)} ({len(result.failures)} of {len(result.trained)} seeds failed)"
    better, worse = by_label.get(claim.better), by_label.get(claim.worse)
    if better is None or worse is None:
        return "not run at this scale"
    if not (better.is_started and worse.is_started):
        return "not run"
    if better.has_failed and worse.has_failed:
        return "both failed"
    if better.has_failed or worse.has_failed:
        failed = better if better.has_failed else worse
        return f"{_verdict(worse.has_failed)}: {failed.arm.label} failed to train"
    ours, theirs, sign = _compared(better, worse, experiment)
    if ours is None or theirs is None:
        return "not run"
    difference = (ours.mean - theirs.mean) * sign
    if f"{ours.mean:.2f}" == f"{theirs.mean:.2f}":
        return f"**no difference** ({ours.mean:.2f})"
    noise = (ours.spread**2 / len(ours.values) + theirs.spread**2 / len(theirs.values)) ** 0.5
    is_settled, doubt = abs(difference) >= 2 * noise, ""
    if _is_about_scores(better, worse, experiment) and (p := p_values.get(claim.text)) is not None:
        is_settled, doubt = p < 0.05, f", {len(ours.values)} seed{'s' * (len(ours.values) > 1)}, p {p:.4f}"
    elif len(ours.values) < 2 or len(theirs.values) < 2:
        doubt = ", one seed: no spread known"
    elif not is_settled:
        doubt = ", within two standard errors"
    verdict = _verdict(difference > 0) if is_settled else "**not settled**"
    return f"{verdict} ({ours.mean:.2f} against {theirs.mean:.2f}{doubt})"


def _verdict(holds: bool) -> str:
    return "**holds**" if holds else "**does not hold**"


def _compared(better: ArmResult, worse: ArmResult, experiment: Experiment) -> tuple[Figure | None, Figure | None, int]:
    """The measurements to compare; the last value is -1 if lower is better."""
    if not experiment.trains:
        return better.number("speed", "tokens_per_second"), worse.number("speed", "tokens_per_second"), 1
    if not _is_about_scores(better, worse, experiment):
        return better.number("train", "valid", "ppl"), worse.number("train", "valid", "ppl"), -1
    shared = on_shared_seeds(better, worse, experiment.metric) or on_shared_seeds(better, worse, "bleu")
    return (*shared, 1) if shared else (None, None, 1)


def _is_about_scores(better: ArmResult, worse: ArmResult, experiment: Experiment) -> bool:
    """Rather than about speed, or perplexity, if the paper's claim is."""
    of_perplexity = experiment.shows_perplexity and any("ppl" in arm.arm.paper for arm in (better, worse))
    return experiment.trains and not of_perplexity
