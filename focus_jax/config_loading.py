"""From a config file and a command line to a checked Config, and to JSON and back. Imports no JAX."""

import dataclasses
import difflib
import re
import runpy
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro
from pydantic import TypeAdapter, ValidationError

from focus_jax.config import Config, Dense, Focus
from focus_jax.errors import UserError

_ADAPTER = TypeAdapter(Config)


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a file with the command line's overrides (`--optimizer.peak-lr 3e-4`), checked.

    Raises UserError naming the field; unknown options end in tyro's message with suggestions and exit code 2.
    """
    from_file = check(_run_config_file(path), origin=f"{path}: ")
    return check(overridden(from_file, overrides, prog=f"train.py --config {path}"))


def overridden(config: Config, overrides: Sequence[str], *, prog: str) -> Config:
    """Not checked yet. Unknown options end in tyro's message, in the name of `prog`, and exit code 2."""
    return tyro.cli(Config, prog=prog, args=list(overrides), default=config, config=(tyro.conf.AvoidSubcommands,))


def check(config: Config, origin: str = "") -> Config:
    """Returns the config if every value has its type and range and the fields agree with each other."""
    try:
        _ADAPTER.validate_python(config)
    except ValidationError as error:
        raise UserError(origin + "; ".join(_field_problems(config, error))) from None
    for name, problem in _contradictions(config):
        raise UserError(f"{origin}{name}: {problem}")
    return config


def to_json(config: Config) -> str:
    return _ADAPTER.dump_json(config, indent=2).decode() + "\n"


def read_json(path: Path) -> Config:
    """The config stored with a run; UserError where the file is missing, damaged or of another version."""
    try:
        return check(_ADAPTER.validate_json(path.read_bytes()))
    except FileNotFoundError:
        raise UserError(f"{path}: not there; is {path.parent} the folder of a run?") from None
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise UserError(
            f"{path}: {place or 'file'}: {problem['msg']}; it was altered, or made by another version"
        ) from None


def differences(one: Config, other: Config) -> Iterator[tuple[str, Any, Any]]:
    """Dotted names of the fields in which two configs differ, with both values."""

    def walk(name: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
        if dataclasses.is_dataclass(a) and type(a) is type(b):
            for f in dataclasses.fields(a):
                yield from walk(f"{name}.{f.name}".lstrip("."), getattr(a, f.name), getattr(b, f.name))
        elif a != b:
            yield name, a, b

    return walk("", one, other)


def _run_config_file(path: Path) -> Config:
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "name a Python file with a get_config() function"
        raise UserError(f"{path}: no such config file; {hint}")
    try:
        names = runpy.run_path(str(path))
        if "get_config" not in names:
            raise UserError(f"{path}: has no function get_config() that returns a Config")
        config = names["get_config"]()
    except UserError:
        raise
    # It is the user's program, and may raise anything.
    except Exception as error:
        raise UserError(f"{path}: {_describe_mistake(error)}{_line_of(error, path)}") from None
    if not isinstance(config, Config):
        raise UserError(f"{path}: get_config() returned {type(config).__name__}; it must return a Config")
    return config


def _describe_mistake(error: Exception) -> str:
    """A dataclass's complaint about its arguments, with the nearest field in place of a bare 'unexpected keyword'."""
    match = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if match is None:
        known = isinstance(error, TypeError | SyntaxError)
        return str(error) if known else f"{type(error).__name__}: {error}"
    section, name = match.groups()
    import focus_jax.config as config_module

    fields = [f.name for f in dataclasses.fields(getattr(config_module, section))]
    near = difflib.get_close_matches(name, fields, n=1)
    return f"{section} has no field {name!r}; " + (
        f"did you mean {near[0]!r}?" if near else f"it has {', '.join(fields)}"
    )


def _line_of(error: Exception, path: Path) -> str:
    """Where in the file; a SyntaxError says it itself."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""


def _field_problems(config: Config, error: ValidationError) -> Iterator[str]:
    attention = type(config.attention).__name__
    if not isinstance(config.attention, Dense | Focus):
        yield f"attention: {config.attention!r} is neither Dense() nor Focus(...)"
    for problem in error.errors():
        place = [str(part) for part in problem["loc"]]
        if place[0] == "attention" and len(place) > 1:
            # A union reports against every member; only the one that was given is of interest.
            if place[1] != attention:
                continue
            del place[1]
        yield f"{'.'.join(place)}: {problem['msg']} (it is {problem['input']!r})"


def _contradictions(config: Config) -> Iterator[tuple[str, str]]:
    yield from _model_contradictions(config)
    yield from _schedule_contradictions(config)
    if [config.mesh.data, config.mesh.fsdp, config.mesh.tensor].count(-1) > 1:
        yield "mesh", "only one of data, fsdp and tensor can be -1, which takes the devices that are left"
    yield from _profile_contradictions(config)
    if isinstance(config.attention, Focus):
        yield from _focus_contradictions(config, config.attention)
    elif "focus" in config.models:
        yield "models", 'lists "focus" but attention is Dense(); set attention=Focus(...) or models=("dense",)'
    if not config.models or len(set(config.models)) < len(config.models):
        yield "models", "list one or two different models"


def _model_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    model = config.model
    if model.width % model.heads:
        yield "model.heads", f"{model.heads} heads do not divide the width {model.width}"
    if model.heads % model.kv_heads:
        yield "model.kv_heads", f"{model.kv_heads} key/value heads do not divide {model.heads} query heads"
    if model.positions == "rotary" and model.width // model.heads % 2:
        yield "model.heads", f"rotary positions need an even head width, not {model.width // model.heads}"


def _schedule_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    training, optimizer = config.training, config.optimizer
    if training.batch_size % training.microbatches:
        yield "training.microbatches", f"{training.microbatches} does not divide batch_size {training.batch_size}"
    if training.sequence_length % training.loss_chunks:
        yield "training.loss_chunks", f"{training.loss_chunks} does not divide {training.sequence_length} tokens"
    if optimizer.warmup_steps >= training.steps:
        warmup = optimizer.warmup_steps
        yield "optimizer.warmup_steps", f"{warmup} leaves nothing of {training.steps} training.steps; name fewer"
    if optimizer.decay_steps is not None and optimizer.warmup_steps + optimizer.decay_steps > training.steps:
        yield "optimizer.decay_steps", f"with the warm-up it is longer than the {training.steps} training.steps"


def _profile_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    first, last = config.profile.first_and_last() or (1, 1)
    if first > last:
        yield "profile.steps", f"{config.profile.steps} ends before it begins; write FIRST:LAST"
    if last > config.training.steps:
        yield "profile.steps", f"{config.profile.steps} goes beyond the {config.training.steps} training.steps"


def _focus_contradictions(config: Config, focus: Focus) -> Iterator[tuple[str, str]]:
    if focus.top_k > focus.groups:
        yield "attention.top_k", f"{focus.top_k} is more than the {focus.groups} groups"
    for layer in focus.dense_layers:
        if layer >= config.model.layers:
            yield "attention.dense_layers", f"there is no layer {layer}; the last is {config.model.layers - 1}"
    if focus.training == "hard" and focus.router == "gate" and (focus.gate, focus.membership) != ("log", "query"):
        yield "attention.router", 'a hard pattern carries gates only where gate="log" and membership="query"'
    distant_rows = max(config.training.sequence_length - focus.window - 1, 0)
    if focus.training == "hard" and focus.router == "distill" and 0 < distant_rows <= focus.probes:
        yield (
            "attention.probes",
            f"{focus.probes} leave none of the {distant_rows} rows with distant keys to the hard pattern; name fewer, "
            "or a smaller attention.window",
        )
    if focus.hard_from_step and focus.training == "soft":
        yield "attention.hard_from_step", 'soft training does not become hard; set training="hard", or leave it at 0'
    if focus.hard_from_step >= config.training.steps:
        yield "attention.hard_from_step", f"the run has only {config.training.steps} training.steps"
    if focus.balance == "sinkhorn" and not config.evaluation.allow_noncausal:
        yield (
            "attention.balance",
            '"sinkhorn" sees the future, so its perplexity is not a language model\'s; use "carried", or set '
            "evaluation.allow_noncausal to report it labelled as such",
        )
    if len(set(config.evaluation.top_k)) < len(config.evaluation.top_k):
        yield "evaluation.top_k", "lists a number twice"
    for top_k in config.evaluation.top_k:
        if top_k > focus.groups:
            yield "evaluation.top_k", f"{top_k} is more than the {focus.groups} groups"
