"""A plan in words, as JSON, and several as a table of Markdown."""

from collections.abc import Iterator, Sequence
from typing import Any

from focus_jax import h200
from focus_jax.plan.needs import Needs
from focus_jax.plan.plan import USABLE, Plan

GIB = 2**30


def as_text(plan: Plan, utilisation: float) -> str:
    return "\n".join(_lines(plan, utilisation))


def as_json(plan: Plan, utilisation: float) -> dict[str, Any]:
    """`bytes_per_device` is about all models of the run, `flops_per_token` about the first; `models` has each."""
    first = plan.models[0]
    return {
        "config": str(plan.path),
        "devices": plan.devices,
        "target": h200.DEVICE_KIND,
        "mesh": dict(plan.mesh),
        "compiled": plan.compiled,
        "fits": plan.fits,
        "bytes_per_device": {
            "state": plan.state_bytes,
            "temporaries": plan.temporary_bytes,
            "peak": plan.peak_bytes,
            "usable": plan.usable_bytes,
        },
        "collectives": _collectives_json(plan.collectives()),
        "flops_per_token": {"executed": first.flops_executed, "dense_equivalent": first.flops_dense_equivalent},
        "tokens_per_step": plan.tokens_per_step,
        "utilisation": utilisation,
        "models": {
            needs.model: {
                "parameters": needs.parameters,
                "state_bytes": needs.state_bytes,
                "temporary_bytes": needs.temporary_bytes,
                "collectives": _collectives_json(needs.collectives),
                "flops_per_token": {
                    "executed": needs.flops_executed,
                    "dense_equivalent": needs.flops_dense_equivalent,
                },
                "seconds_per_step": plan.seconds_per_step(needs, utilisation),
                "tokens_per_second": plan.tokens_per_step / plan.seconds_per_step(needs, utilisation),
            }
            for needs in plan.models
        },
    }


def as_table(plans: Sequence[Plan], utilisation: float) -> str:
    """A row per plan; times are those of the first model."""
    lines = [
        "| config | parameters | H200s | tokens a step | state | temporaries | peak, GiB | fits "
        f"| tokens/s at {utilisation:.0%} | run, GPU hours |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for plan in plans:
        first = plan.models[0]
        seconds = plan.seconds_per_step(first, utilisation)
        hours = plan.run.training.steps * plan.devices / 3600
        all_seconds = sum(plan.seconds_per_step(needs, utilisation) for needs in plan.models)
        lines.append(
            f"| {plan.path.stem} | {first.parameters / 1e6:,.0f} M | {plan.devices} "
            f"| {plan.run.training.batch_size:,} × {plan.run.training.sequence_length:,} "
            f"| {plan.state_bytes / GIB:.1f} | {plan.temporary_bytes / GIB:.1f} | {plan.peak_bytes / GIB:.1f} "
            f"| {'yes' if plan.fits else '**no**'} | {plan.tokens_per_step / seconds:,.0f} "
            f"| {hours * all_seconds:,.0f} |"
        )
    return "\n".join(lines)


def _lines(plan: Plan, utilisation: float) -> Iterator[str]:
    training = plan.run.training
    axes = " · ".join(f"{name} {size}" for name, size in plan.mesh.items())
    how = "the train step, compiled" if plan.compiled else "by shapes alone (temporaries are an estimate)"
    yield f"{plan.path}: {' and '.join(plan.run.models)} on {plan.devices} × {h200.DEVICE_KIND} ({axes}); {how}"
    yield (
        f"  a step: {training.batch_size:,} sequences of {training.sequence_length:,} tokens in "
        f"{training.microbatches} microbatches; remat {training.remat}, scan_layers {training.scan_layers}, "
        f"loss_chunks {training.loss_chunks}"
    )
    for needs in plan.models:
        yield from _model_lines(plan, needs, utilisation)
    verdict = "fits" if plan.fits else "does NOT fit"
    yield (
        f"  together {plan.peak_bytes / GIB:.1f} GiB per device: {verdict} in the {plan.usable_bytes / GIB:.1f} GiB "
        f"that are usable ({USABLE:.0%} of the memory)"
    )


def _model_lines(plan: Plan, needs: Needs, utilisation: float) -> Iterator[str]:
    seconds = plan.seconds_per_step(needs, utilisation)
    yield f"  {needs.model}: {needs.parameters:,} parameters"
    yield (
        f"    per device: state {needs.state_bytes / GIB:.2f} GiB, temporaries {needs.temporary_bytes / GIB:.2f} GiB, "
        f"peak {(needs.state_bytes + needs.temporary_bytes) / GIB:.2f} GiB"
    )
    for kind, moved in sorted((needs.collectives or {}).items()):
        yield f"    {kind}: {moved.times:,} a step, {moved.bytes / GIB:.2f} GiB"
    if needs.collectives == {}:
        yield "    no collectives"
    yield (
        f"    FLOPs per token: {needs.flops_executed:.3e} executed (even groups), {needs.flops_dense_equivalent:.3e} "
        "dense-equivalent"
    )
    yield (
        f"    at {utilisation:.0%} of peak: {seconds:.3g} s a step, {plan.tokens_per_step / seconds:,.0f} tokens/s, "
        f"{plan.run.training.steps * seconds / 3600:,.1f} h for {plan.run.training.steps:,} steps"
    )


def _collectives_json(moved: Any) -> dict[str, dict[str, int]] | None:
    return None if moved is None else {kind: {"count": m.times, "bytes": m.bytes} for kind, m in moved.items()}
