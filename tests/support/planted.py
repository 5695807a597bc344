"""The planted faults, each with the check that must catch it."""

from __future__ import annotations

from functools import partial

from pytest import MonkeyPatch
from support import broken, checks, structure
from support.broken import plant_verifier, reject_with
from support.checks import PENALTY, SAMPLERS, Toy, check_law, check_lossless, remembering, tables
from support.dflash_ring import check_ring as check_feature_ring
from support.filled import (
    check_caught_up,
    check_chances_are_learned,
    check_no_source_is_certain,
    check_sources_are_told_apart,
)
from support.middle_level import check_caches
from support.mtp_ring import check_ring

from longdraft import build
from longdraft.drafters import SelfDrafter
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.views import Full, Guided


def vegas_tree(t):
    return SelfDrafter(t, Guided(0.07, 16), [3, 4, 4])


def full_view(t):
    return SelfDrafter(t, Full(), [1] * 3)


def triforce(t):
    options = {"gamma": 4, "inner": 1, "budget": 24, "sink": 2, "window": 12}
    return build("triforce", t, random_lm(t, 1), **options)


tree_law = partial(check_law, "reject", widths=(3, 6))
narrow_law = partial(check_law, "reject", widths=(3, 6), sampler=SAMPLERS["T=0.7 top-p"])
match_law = partial(check_law, "match", widths=(3, 6), limit=3, vocab=4)
chain = partial(check_lossless, full_view, "llama", SAMPLERS["T=1"])
tree = partial(check_lossless, vegas_tree, "gpt-oss", SAMPLERS["T=1"], (70, 31, 90))
near = partial(check_lossless, vegas_tree, "llama", SAMPLERS["greedy"], (70, 31, 90), 24)
penalized = partial(check_lossless, full_view, "mistral-window", PENALTY, (70, 31, 90), 24)
levels = partial(check_lossless, triforce, "llama", SAMPLERS["T=1"], (70, 31, 90), 24)


def reject_plant(fault):
    return plant_verifier("reject", reject_with(fault))


# fault: (plant, check); a fault may stand here more than once, " v ..." tells its lines apart
PLANTED = {
    "one draw per path (TokenSwift) v law": (
        plant_verifier("match", broken.per_path_draws),
        match_law,
    ),
    "one draw per path (TokenSwift) v plain": (
        plant_verifier("match", broken.per_path_draws),
        tree,
    ),
    "ratio by tree slot (LongSpec)": (reject_plant("ratio by tree slot"), tree_law),
    "redraws from p, not the residual (TriForce)": (reject_plant("redraws from p"), tree_law),
    "q forced to 1": (reject_plant("q forced to 1"), tree_law),
    "q keeps a refused token": (reject_plant("q keeps a refused token"), tree_law),
    "ratio test of a child that is no draw": (
        reject_plant("tests a child that is no draw"),
        narrow_law,
    ),
    "penalty frozen at the root (TokenSwift)": (broken.frozen_penalty, penalized),
    "position off by one": (broken.wrong_position, chain),
    "position off by one v stock": (
        broken.wrong_position,
        partial(structure.check_tree_pass, "llama"),
    ),
    "a node sees its sibling": (broken.sees_sibling, tree),
    "a node sees its sibling v stock": (
        broken.sees_sibling,
        partial(structure.check_tree_pass, "llama"),
    ),
    "a node sees its sibling v naive": (broken.sees_sibling, structure.check_branching_shape),
    "kept slots shifted by one": (broken.keep_shifted, tree),
    "kept slots shifted by one v cache": (broken.keep_shifted, structure.check_branching_keep),
    "kept slots not moved": (broken.keep_in_place, tree),
    "kept slots not moved v cache": (broken.keep_in_place, structure.check_branching_keep),
    "length off by one after acceptance": (broken.length_off, chain),
    "length off by one after acceptance v cache": (
        broken.length_off,
        structure.check_branching_keep,
    ),
    "rollback leaves one slot": (broken.rollback_off, structure.check_rollback),
    "draft overwrites committed slots": (broken.corrupting_draft, chain),
    "the middle level counts as verified (TriForce)": (
        plant_verifier("match", broken.unverified),
        levels,
    ),
    "the middle level's slots stay committed (TriForce)": (broken.middle_stays, levels),
    "the middle level's slots stay committed (TriForce) v cache": (
        broken.middle_stays,
        check_caches,
    ),
    "the middle level's keys stay (TriForce)": (broken.middle_keys_stay, levels),
    "the middle level's keys stay (TriForce) v cache": (broken.middle_keys_stay, check_caches),
    "an MTP ring keeps refused drafts": (broken.refused_pairs_stay, check_ring),
    "an accepted token's feature is lost": (broken.lost_features, check_ring),
    "drafts near the best are accepted": (plant_verifier("match", broken.lenient), near),
    "drafts are favored by a little": (broken.favored, near),
    "the drafter zeroes slots of the prompt": (broken.zeroed_prompt, chain),
    "the drafter zeroes slots of the prompt once": (broken.zeroed_once, chain),
    "the drafter turns the prompt's keys": (broken.turned_prompt, chain),
    "the drafter changes the rows' seeds": (broken.other_seeds, chain),
    "the drafter changes the sampler": (broken.other_sampler, chain),
    "the drafter changes the end tokens": (broken.other_ends, chain),
    "the drafter edits the rows' tokens": (broken.other_tokens, penalized),
    "end token inside a branch missed": (broken.late_end, partial(checks.check_eos, full_view)),
    "one noise for every depth of a block": (broken.noise_of_one_depth, checks.check_best_path),
    "a block reads features of refused nodes": (broken.features_of_all_nodes, check_feature_ring),
    "the prompt's states are one token late": (broken.late_states, check_feature_ring),
    "a copied node is attributed to the drafter": (
        broken.swapped_sources,
        check_sources_are_told_apart,
    ),
    "a source that was right is taken for certain": (
        broken.right_is_certain,
        check_no_source_is_certain,
    ),
    "a source's chances are never corrected": (broken.chances_stay, check_chances_are_learned),
    "a source's chances are never corrected v text": (
        broken.chances_stay,
        check_sources_are_told_apart,
    ),
    "an idle drafter is asked before it caught up": (broken.not_caught_up, check_caught_up),
    "view counts slots twice": (broken.double_counting, structure.check_sink_window_pass),
    "noise by place in the batch": (broken.noise_by_place, checks.check_noise_is_pure),
    "noise by place in the batch v plain": (broken.noise_by_place, chain),
    "noise without position": (broken.noise_without_position, checks.check_draws_are_independent),
    "noise of seed + position": (broken.noise_additive, checks.check_draws_are_independent),
}


def top_k_children():
    bad = partial(check_law, "reject", drafter=Toy(tables(5, 2)[None], [3, 6], broken.beam_of_top))
    return tree_law, bad


def noise_used_twice():
    good = partial(check_law, "reject", **remembering())
    return good, partial(check_law, "reject", **remembering(broken.beam_reusing_noise))


def coin_of_zero():
    def check_impossible():
        with MonkeyPatch.context() as mp:
            checks.check_impossible(mp)

    def bad():
        with MonkeyPatch.context() as mp:
            reject_plant("coin 0 accepts anything")(mp)
            checks.check_impossible(mp)

    return check_impossible, bad


# fault: () -> (check, the check of a twin); no plant, since the fault lies in what the check is
# given
APART = {
    "top-k children tested as draws (LongSpec)": top_k_children,
    "draft noise used by two rounds": noise_used_twice,
    "a coin of 0 accepts the impossible": coin_of_zero,
}
