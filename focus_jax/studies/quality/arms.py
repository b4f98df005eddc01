"""What is compared: one model, its data, their order and its initial values, with one attention after another."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from focus_jax.accounting.pairs import dense_pairs, local_pairs
from focus_jax.config import Config, Focus, dense_twin
from focus_jax.config_loading import check
from focus_jax.recipes import PUBLISHED
from focus_jax.studies.quality.presets import PRESETS
from focus_jax.studies.variants import changed

Preset = Literal["small", "gpu"]


@dataclass(frozen=True)
class Arm:
    """One run, but for what `changes` overrides in its config."""

    preset: Preset
    name: str
    seed: int
    changes: str = ""
    """SECTION.FIELD=VALUE, separated by spaces; for all arms alike, and for the choice of M and K."""


IDENTITY = tuple(field.name for field in dataclasses.fields(Arm))
SEVERAL_SEEDS = 5


def local(run: Config) -> Config:
    """The window alone."""
    return _focus(run, groups=1, top_k=0, router="gate")


def wide(run: Config) -> Config:
    """The window alone, widened to the pairs that Focus keeps where its groups are even."""
    return _focus(local(run), window=equal_window(attention_of(run), run.training.sequence_length))


def frozen(run: Config) -> Config:
    """Focus whose routers stay as they were drawn; its potentials go on keeping the groups even."""
    return dataclasses.replace(run, optimizer=dataclasses.replace(run.optimizer, router_lr_multiplier=0.0))


def focus(run: Config) -> Config:
    """As recommended."""
    return run


def other_top_k(run: Config) -> Config:
    """Focus as recommended but for M: 1 where that is 2, and 2 where it is 1."""
    return _focus(run, top_k=3 - attention_of(run).top_k)


def soft(run: Config) -> Config:
    """Trained softly with gate `log`, read softly, and by the hard pattern with and without its gate."""
    return _focus(run, training="soft", balance_rate=0.5)


def published(run: Config) -> Config:
    """Trained and read as published: every pair gated, Sinkhorn over the sequence, NOT causal; and read hard."""
    recommended = attention_of(run)
    attention = dataclasses.replace(
        PUBLISHED, groups=recommended.groups, window=recommended.window, top_k=recommended.top_k
    )
    run = dataclasses.replace(run, attention=attention)
    return dataclasses.replace(run, evaluation=dataclasses.replace(run.evaluation, allow_noncausal=True))


ARMS: dict[str, Callable[[Config], Config]] = {
    "dense": dense_twin,
    "local": local,
    "wide": wide,
    "frozen": frozen,
    "focus": focus,
    "other-top-k": other_top_k,
    "soft": soft,
    "published": published,
}
ONE_SEED = ("other-top-k", "soft", "published")


def arms(preset: Preset, names: Iterable[str], seeds: Iterable[int] | None, changes: str) -> Iterator[Arm]:
    """Seed by seed, so that an interrupted study has all arms at some seeds. Without `seeds`, as many as each arm's
    claim needs."""
    chosen = list(names)
    for seed in range(SEVERAL_SEEDS) if seeds is None else seeds:
        for name in chosen:
            if seeds is not None or seed == 0 or name not in ONE_SEED:
                yield Arm(preset, name, seed, changes)


def config_of(arm: Arm, folder: Path) -> Config:
    """Runs, and the token store that they share, lie in `folder`. Raises UserError where `changes` make no sense."""
    run = changed(PRESETS[arm.preset](folder), arm.changes)
    name = " ".join((arm.preset, arm.name, str(arm.seed), *arm.changes.split())).replace(" ", "-")
    run = dataclasses.replace(run, run=str(folder / name), seed=arm.seed)
    return check(dataclasses.replace(ARMS[arm.name](run), models=("dense",) if arm.name == "dense" else ("focus",)))


def equal_window(attention: Focus, tokens: int) -> int:
    """The window whose pairs come nearest to those that Focus keeps of `tokens` where its groups are even."""
    near, all_pairs = local_pairs(tokens, attention.window), dense_pairs(tokens)
    kept = near + (all_pairs - near) * attention.top_k / attention.groups
    return min(range(tokens), key=lambda window: math.fabs(local_pairs(tokens, window) - kept))


def _focus(run: Config, **fields: Any) -> Config:
    return dataclasses.replace(run, attention=dataclasses.replace(attention_of(run), **fields))


def attention_of(run: Config) -> Focus:
    assert isinstance(run.attention, Focus)
    return run.attention
