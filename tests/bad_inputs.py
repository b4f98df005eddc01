"""The bad inputs that tests/test_bad_input.py gives to the real commands.

Every case starts in a folder with text, its token store, a finished run of four steps, and its config file.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TRAIN = "train --config experiment.py"

Setup = Callable[[], object]


def write(path: str, content: str | bytes) -> Setup:
    data = content.encode() if isinstance(content, str) else content
    return lambda: Path(path).write_bytes(data)


def replace(path: str, old: str, new: str) -> Setup:
    def setup() -> None:
        text = Path(path).read_text()
        assert old in text
        Path(path).write_text(text.replace(old, new, 1))

    return setup


def remove(*paths: str) -> Setup:
    def setup() -> None:
        for path in map(Path, paths):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return setup


def shorten(pattern: str) -> Setup:
    def setup() -> None:
        path = next(path for path in sorted(Path().glob(pattern)) if path.is_file())
        os.truncate(path, path.stat().st_size // 2)

    return setup


def alter(pattern: str) -> Setup:
    def setup() -> None:
        path = next(path for path in sorted(Path().glob(pattern)) if path.is_file())
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    return setup


def damage_line(path: str, number: int) -> Setup:
    def setup() -> None:
        lines = Path(path).read_bytes().split(b"\n")
        lines[number - 1] = b"{"
        Path(path).write_bytes(b"\n".join(lines))

    return setup


def anew(*setups: Setup) -> Setup:
    """Without the finished run, and what else is to be done."""

    def setup() -> None:
        shutil.rmtree("run")
        for one in setups:
            one()

    return setup


def both(*setups: Setup) -> Setup:
    return lambda: [one() for one in setups]


def without_permission(path: str, mode: int) -> Setup:
    def setup() -> None:
        Path(path).chmod(mode)

    return setup


def program(body: str) -> Setup:
    return write("experiment.py", body)


@dataclass(frozen=True)
class Case:
    line: str
    message: str
    setup: Setup = lambda: None
    code: int = 2
    powerless: bool = False
    """Run as a user without rights."""
    changes_nothing: bool = True


VALUES = [
    Case(f"{TRAIN} {options}", message)
    for options, message in (
        ("--model.heads 5", "model.heads: 5 heads do not divide the width 32"),
        ("--model.kv-heads 3", "model.kv_heads: 3 key/value heads do not divide 4 query heads"),
        ("--model.width 0", "model.width: Input should be greater than or equal to 1"),
        ("--model.rope-theta -1", "model.rope_theta: Input should be greater than 0"),
        ("--attention.top-k 9", "attention.top_k: 9 is more than the 4 groups"),
        ("--attention.groups 65", "attention.groups: Input should be less than or equal to 64"),
        ("--attention.temperature 0", "attention.temperature: Input should be greater than 0"),
        (
            "--attention.training hard --attention.probes 999",
            "attention.probes: 999 leave none of the .* rows with distant keys .*; name fewer",
        ),
        (
            "--attention.training hard --attention.router gate --attention.membership shared",
            "attention.router: a hard pattern carries gates only",
        ),
        (
            "--attention.training hard --attention.hard-from-step 4",
            "attention.hard_from_step: the run has only 4 training.steps",
        ),
        ("--attention.hard-from-step 1", "attention.hard_from_step: soft training does not"),
        ("--shardings 0", "--shardings: there are no meshes of 0 devices"),
        ("--attention.window -1", "attention.window: Input should be greater than or equal to 0"),
        ("--attention.dense-layers 7", "attention.dense_layers: there is no layer 7; the last is 0"),
        ("--attention.balance sinkhorn", 'attention.balance: "sinkhorn" sees the future.*evaluation.allow_noncausal'),
        ("--evaluation.top-k 9", "evaluation.top_k: 9 is more than the 4 groups"),
        ("--training.microbatches 3", "training.microbatches: 3 does not divide batch_size 4"),
        ("--training.steps 0", "training.steps: Input should be greater than or equal to 1"),
        ("--training.steps many", "--training.steps"),
        ("--optimizer.warmup-steps 4", "optimizer.warmup_steps: 4 leaves nothing of 4 training.steps"),
        ("--optimizer.peak-lr nan", "optimizer.peak_lr: Input should be a finite number"),
        ("--optimizer.beta1 1", "optimizer.beta1: Input should be less than 1"),
        ("--checkpoint.every 0", "checkpoint.every: Input should be greater than or equal to 1"),
        ("--checkpoint.every-minutes 0", "checkpoint.every_minutes: Input should be greater than 0"),
        ("--guard.spike-window 1", "guard.spike_window: Input should be greater than or equal to 2"),
        ("--guard.spike-deviations 0", "guard.spike_deviations: Input should be greater than 0"),
        ("--guard.bad-update ignore", "--guard.bad-update"),
        ("--data.validation-fraction 1.5", "data.validation_fraction: Input should be less than 1"),
        ("--models focus focus", "models: list one or two different models"),
        ("--seed -1", "seed: Input should be greater than or equal to 0"),
        ("--seed 99999999999999999999", "seed: Input should be less than 2147483648"),
        ("--run ''", "run: String should have at least 1 character"),
        ("--data.store ''", "data.store: String should have at least 1 character"),
        ("--evaluation.top-k 1 1", "evaluation.top_k: lists a number twice"),
        ("--telemetry.wandb-project a/b", "telemetry.wandb_project: String should match pattern"),
        ("--attention.topk 2", "--attention.top-k"),
        ("--replay x", "argument --replay: invalid int value: 'x'"),
        ("--replay 5", "--replay: there is no step 5; the run has steps 1 to 4"),
    )
]
FILES = [
    Case("train", "the following arguments are required: --config"),
    Case("train --config experimen.py", "experimen.py: no such config file; did you mean experiment.py?"),
    Case("train --config text", "text: no such config file"),
    Case(TRAIN, r"experiment.py: '\(' was never closed", program("def get_config(\n")),
    Case(TRAIN, "experiment.py: has no function get_config", program("x = 1\n")),
    Case(TRAIN, r"experiment.py: get_config\(\) returned dict; it must", program("def get_config(): return {}\n")),
    Case(TRAIN, r"experiment.py: ZeroDivisionError: .* \(line 2\)", program("def get_config():\n    return 1 / 0\n")),
    Case(TRAIN, r"experiment.py: KeyError: 'x' \(line 1\)", program("def get_config(): return {}['x']\n")),
    Case(TRAIN, "experiment.py: ModuleNotFoundError: No module named 'focus_jacks'", program("import focus_jacks\n")),
    Case(TRAIN, "experiment.py: .*utf-8", write("experiment.py", b"x = '\xe9'\n")),
    Case(TRAIN, "experiment.py: .*null bytes", write("experiment.py", b"\0\0")),
]
STORES = [
    Case(f"{TRAIN} --data.files nothing/*.txt", "data.files: 'nothing/.*' matches no file", anew(remove("store"))),
    Case(TRAIN, r"text/00.txt.*UTF-8", anew(remove("store"), write("text/00.txt", b"caf\xe9 au lait"))),
    Case(TRAIN, "data.store: store is there but no token store; name another", anew(remove("store/manifest.json"))),
    Case(TRAIN, "store is there but no token store; name another", anew(remove("store"), write("store", "x"))),
    Case(
        TRAIN,
        "data.validation_files: 0 of 30 files have text in them, too few to hold one out",
        anew(remove("store"), lambda: [path.write_text("") for path in Path("text").iterdir()]),
    ),
    Case(TRAIN, "data.store: store/manifest.json is damaged", shorten("store/manifest.json")),
    Case(TRAIN, r"data.store: store/\S+ has \S+ bytes instead of", shorten("store/*.tokens")),
    Case(TRAIN, r"data.store: store/\S+ has SHA-256", alter("store/*.tokens")),
    Case(TRAIN, r"data.store: store/\S+ has SHA-256", alter("store/*.lengths")),
    Case(
        TRAIN,
        r"data.store: store/\S+ is missing; copy the file again",
        lambda: next(Path("store").glob("*.tokens")).unlink(),
    ),
    Case(f"{TRAIN} --model.vocab-size 300", "model.vocab_size: 300", anew()),
    Case(TRAIN, "data.store: store was made from another corpus", anew(write("text/99.txt", "one more"))),
    Case(f"{TRAIN} --training.sequence-length 99999", "training.sequence_length: 99999, and the training text", anew()),
    Case(f"{TRAIN} --evaluation.sequences 9999", "evaluation.sequences: 9999 sequences of 48 tokens", anew()),
    Case(f"{TRAIN} --data.tokenizer no.json", "no.json", anew(remove("store"))),
    Case(f"{TRAIN} --data.tokenizer t.json", "t.json", anew(remove("store"), write("t.json", "{}"))),
    Case(f"{TRAIN} --data.source tfds", "data.files|data.dataset", anew(remove("store"))),
    Case(f"{TRAIN} --data.mixture elsewhere 1.0", "data.mixture: elsewhere is no finished token store", anew()),
    Case(
        TRAIN,
        "text/00.txt: Permission denied",
        anew(remove("store"), without_permission("text/00.txt", 0)),
        powerless=True,
    ),
    Case("prepare", "the following arguments are required: --config"),
    Case("prepare --config experiment.py", r"data.store: store/\S+ has SHA-256", alter("store/*.tokens")),
    Case("prepare --config experiment.py --data.eos-token x", "data.eos_token"),
]
RUNS = [
    Case(f"{TRAIN} --run text/00.txt", "text/00.txt: (File exists|Not a directory)"),
    Case(
        f"{TRAIN} --run rights/run",
        "rights/run: Permission denied",
        both(lambda: Path("rights").mkdir(0o555)),
        powerless=True,
    ),
    Case(TRAIN, "run/config.json: file: .*bring it back to continue that run", shorten("run/config.json")),
    Case(TRAIN, "run/config.json: .*bring it back", replace("run/config.json", '"steps": 4', '"steps": "4"')),
    Case(TRAIN, "run/config.json: not there", remove("run/config.json")),
    Case(
        f"{TRAIN} --model.attention-implementation pallas",
        "model.attention_implementation: gated_attention has no 'pallas'; it has auto, reference, blockwise",
        anew(),
        changes_nothing=False,
    ),
    Case(
        f"{TRAIN} --optimizer.peak-lr 1",
        "optimizer.peak_lr: 1.0, but the run in run was started with 0.01; keep it to continue that run",
    ),
    Case(
        TRAIN,
        r"run/checkpoints/4: focus.model/_METADATA is missing, and there is no other to go on from",
        both(remove("run/checkpoints/2", "run/checkpoints/4/focus.model/_METADATA")),
    ),
    Case(
        TRAIN,
        r"run/metrics.jsonl, line 2: not a row of metrics; the file is damaged: remove that line",
        both(remove("run/checkpoints/4"), damage_line("run/metrics.jsonl", 2)),
    ),
    Case(
        TRAIN,
        "data.store: run was trained on another token store",
        both(remove("store", "run/checkpoints/4"), write("text/99.txt", "something else entirely " * 50)),
    ),
    Case(
        f"{TRAIN} --replay 3",
        "data.store: run was trained on another token store",
        both(remove("store"), write("text/99.txt", "something else entirely " * 50)),
    ),
    Case(
        TRAIN,
        "run/metrics.jsonl, line 2: not a row of metrics",
        both(remove("run/checkpoints/4"), replace("run/metrics.jsonl", '"step": 2', '"step": "2"')),
    ),
    Case(TRAIN, "run/checkpoints: File exists", both(remove("run/checkpoints"), write("run/checkpoints", ""))),
    Case(
        f"{TRAIN} --telemetry.wandb offline",
        "run/wandb_id: no id of a W&B run; bring the old one back, or remove it",
        both(remove("run/checkpoints/4"), write("run/wandb_id", "")),
        changes_nothing=False,
    ),
    Case(
        f"{TRAIN} --telemetry.wandb online",
        "telemetry.wandb: online needs a W&B key: set WANDB_API_KEY or run `wandb login`",
        remove("run/checkpoints/4"),
        changes_nothing=False,
    ),
]
EVALUATIONS = [
    Case("eval", "the following arguments are required: --run"),
    Case("eval --run nowhere", "nowhere/config.json: not there; is nowhere the folder of a run?"),
    Case("eval --run run --step 3", "run/checkpoints/3: no such checkpoint; there are: 2, 4"),
    Case("eval --run run --step x", "argument --step: invalid int value: 'x'"),
    Case("eval --run run --top-k 9", "evaluation.top_k: 9 is more than the 4 groups"),
    Case("eval --run run --top-k x", "argument --top-k: invalid"),
    Case("eval --run run --sequences 0", "evaluation.sequences: Input should be greater than or equal to 1"),
    Case("eval --run run --length 99999", "training.sequence_length: 99999"),
    Case("eval --run run --length 0", "argument --length: invalid"),
    Case("eval --run run", "run/checkpoints: no checkpoint yet", remove("run/checkpoints")),
    Case(
        "eval --run run",
        r"run/checkpoints/4: (dense|focus).model/\S+ has other bytes than were written; name another with --step; "
        "there are: 2",
        both(alter("run/checkpoints/4/focus.model/_METADATA"), alter("run/checkpoints/4/dense.model/_METADATA")),
    ),
    Case(
        "eval --run run",
        "run/evaluations/2/focus_soft.npz: damaged; remove it",
        shorten("run/evaluations/2/focus_soft.npz"),
    ),
    Case(
        "eval --run run",
        "data.store: run was trained on another token store",
        both(remove("store"), write("text/99.txt", "something else entirely " * 50)),
    ),
    Case("eval --run run --against nowhere", "nowhere/config.json: not there"),
    Case("report", "the following arguments are required: RUN"),
    Case("report nowhere", "nowhere/metrics.jsonl does not exist: nowhere is not the folder of a run"),
    Case("report run", "run/metrics.jsonl, line 2: not a row of metrics", damage_line("run/metrics.jsonl", 2)),
    Case("report run", "run/config.json: not there", remove("run/config.json")),
    Case("report run", "run/metrics.jsonl, line 2: not a row", replace("run/metrics.jsonl", '"loss": ', '"lost": ')),
    Case(
        "report run copy",
        "run and copy are the same models with the same seed 0; name one of them",
        lambda: shutil.copytree("run", "copy"),
    ),
    Case("report run --output nowhere/page.html", "nowhere/page.html: No such file or directory"),
    Case(
        "report run", "run/report.html: Permission denied", without_permission("run/report.html", 0o444), powerless=True
    ),
]
DASHBOARDS = [
    Case("dashboard --entity someone", "the following arguments are required: --project"),
    Case("dashboard --entity someone --project p --top-k=-1", "--top-k -1: numbers with commas between them"),
    Case("dashboard --entity someone --project p", "--entity: a dashboard needs a W&B key: set WANDB_API_KEY"),
]
CASES = VALUES + FILES + STORES + RUNS + EVALUATIONS + DASHBOARDS
