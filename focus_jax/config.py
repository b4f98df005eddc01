"""Every field of a run. This is the only place where a field has a default.

A config file (configs/NAME.py) is plain Python with a function get_config() that returns a Config; the command line
overrides single fields. Nothing here imports JAX, so a mistake is answered within a second.

Letters in the documentation: D model width, H query heads, J key/value heads, K groups, L layers, M groups that a query
reads (top_k), R routing width, T tokens of a sequence, V vocabulary.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1, lt=2**31)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**31)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]

ModelName = Literal["focus", "dense"]


class Section:
    """A part of a config: values are checked as they stand (no "4" for 4), unknown fields are refused."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", revalidate_instances="always")


@dataclass(frozen=True, kw_only=True)
class Dense(Section):
    """Causal attention to every earlier token."""


@dataclass(frozen=True, kw_only=True)
class Focus(Section):
    """Focus attention: near tokens always, distant tokens within shared groups (arXiv 2604.03260)."""

    groups: Annotated[int, Field(ge=1, le=64)]
    """K, learned groups per layer."""
    top_k: NonNegativeInt
    """M, groups that a query reads when the pattern is hard; 0 reads the window only."""
    window: NonNegativeInt
    """Keys at distance up to this are always attended to and never gated (128 means 129 keys)."""
    training: Literal["hard", "soft"] = "hard"
    """Hard: the model trains on the pattern that it is read by, and no other distant pair is computed. Soft: every pair
    is computed and distant ones are gated, as published."""
    hard_from_step: NonNegativeInt = 0
    """Steps of soft training before the pattern becomes hard; training="hard" only."""
    router: Literal["distill", "gate"] = "distill"
    """How a hard pattern teaches its router. Distill: a few probe rows attend densely, and the router learns to predict
    what they attend to; the language model's gradient never reaches it. Gate: the pairs that are read carry their
    log-affinities, and the language model's gradient reaches the router through them."""
    probes: PositiveInt = 32
    """P, rows of every training sequence that attend densely; router="distill" only."""
    routing_width: PositiveInt = 16
    """R, width of the projection that tokens and centroids are compared in."""
    scores: Literal["cosine", "dot"] = "cosine"
    """How a token is compared with a centroid. Cosine: by the direction in which it lies from the mean of its sequence
    so far and, counted as a few tokens more, of those trained on. Dot: by the product of the two, as published; where
    tokens are much alike, as they are in deep layers early in training, one step of the potentials then moves all of
    them to another group."""
    score_std: PositiveFloat = 2.0
    """Standard deviation of the scores over random directions, at initialisation where scores="dot"."""
    temperature: PositiveFloat = 0.1
    """Dot scores are divided by it, and the initial centroids the shorter for it; scores="dot" only."""
    balance: Literal["carried", "sinkhorn", "none"] = "carried"
    """What keeps groups in use: potentials carried between steps (causal), the published Sinkhorn over the tokens of
    the sequence (NOT causal: it reads the future), or nothing (collapses)."""
    balance_rate: NonNegativeFloat = 0.05
    """Step size of the carried potentials at the peak learning rate; it follows the shape of the learning-rate schedule
    down to 0, so that groups settle before the run ends."""
    sinkhorn_rounds: PositiveInt = 10
    """Rounds of balance="sinkhorn"."""
    gate: Literal["log", "sigmoid"] = "log"
    """How affinities act on a distant logit where the pattern is soft (and, "log" alone, with router="gate"): add
    log(affinity_i·affinity_j), which agrees with the hard mask, or multiply by
    sigmoid(gate_slope·affinity_i·affinity_j), as published."""
    gate_slope: PositiveFloat = 4.0
    """Slope of gate="sigmoid" (not published)."""
    membership: Literal["query", "shared"] = "query"
    """Hard pattern: keys belong to their best group and queries read their top_k ("query", M/K of dense), or a pair
    joins if the two top_k sets meet ("shared", as published, M²/K of dense)."""
    dense_layers: tuple[NonNegativeInt, ...] = ()
    """Layers (from 0) that stay dense."""


@dataclass(frozen=True, kw_only=True)
class Model(Section):
    """A decoder-only transformer. `gpt2` and `llama` below fill in the two families."""

    vocab_size: PositiveInt
    """V, tokens of the tokenizer; the token store must have the same number."""
    vocab_multiple: PositiveInt = 128
    """The embedding is padded to a multiple of this; padding is never predicted."""
    width: PositiveInt
    """D, width of the residual stream."""
    layers: PositiveInt
    """L, blocks."""
    heads: PositiveInt
    """H, query heads; must divide the width."""
    kv_heads: PositiveInt
    """J, key/value heads; must divide the query heads."""
    mlp_width: PositiveInt
    """F, hidden width of the MLP."""
    mlp: Literal["gelu", "swiglu"]
    """GPT-2's two matrices with (tanh) GELU, or Llama's three with SwiGLU."""
    norm: Literal["layernorm", "rmsnorm"]
    """LayerNorm (with bias where `biases`) or RMSNorm."""
    norm_epsilon: PositiveFloat = 1e-5
    """Added to the variance in every norm."""
    positions: Literal["learned", "rotary"]
    """Learned positions (training.sequence_length of them, and no more at evaluation) or rotary ones."""
    rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary angles."""
    biases: bool
    """Biases in every linear map and LayerNorm."""
    tied_embeddings: bool
    """The output head is the input embedding."""
    qk_norm: bool = False
    """RMSNorm on every head's queries and keys before the rotation."""
    init_std: PositiveFloat = 0.02
    """Standard deviation of matrices and token embeddings at initialisation."""
    position_init_std: PositiveFloat = 0.01
    """Standard deviation of learned positions at initialisation."""
    scale_residual_init: bool
    """Divide the initial output matrices of attention and MLP by √(2L), as GPT-2 does."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Matmuls and activations; parameters, softmax, norms, router and loss stay float32."""
    attention_implementation: Literal["auto", "reference", "blockwise", "pallas"] = "auto"
    """Implementation of the attention ops; "auto" chooses by platform, says so, and never falls back in silence."""


def gpt2(*, vocab_size: int, width: int, layers: int, heads: int) -> Model:
    """GPT-2: LayerNorm, learned positions, GELU, biases, tied embeddings, scaled residual initialisation."""
    return Model(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        mlp_width=4 * width,
        mlp="gelu",
        norm="layernorm",
        positions="learned",
        biases=True,
        tied_embeddings=True,
        scale_residual_init=True,
    )


def llama(*, vocab_size: int, width: int, layers: int, heads: int, kv_heads: int, mlp_width: int) -> Model:
    """Llama and Mistral: RMSNorm, rotary positions, SwiGLU, grouped key/value heads, no biases, a separate head."""
    return Model(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=mlp_width,
        mlp="swiglu",
        norm="rmsnorm",
        positions="rotary",
        biases=False,
        tied_embeddings=False,
        scale_residual_init=False,
    )


@dataclass(frozen=True, kw_only=True)
class Data(Section):
    """Where the text comes from and how it becomes tokens (README, "Data")."""

    source: Literal["stdlib", "text", "tfds"] = "stdlib"
    """The Python standard library's own sources, local text files, or a data set of tensorflow-datasets."""
    files: tuple[str, ...] = ()
    """Globs of the text files, a document each; source="text" only."""
    validation_files: tuple[str, ...] = ()
    """Globs of the text files held out of training; empty holds out validation_fraction; source="text" only."""
    dataset: str = ""
    """The data set as tensorflow-datasets names it, NAME[/CONFIG][:VERSION]; source="tfds" only."""
    dataset_folder: str = ""
    """Folder that data sets were prepared in (data_dir); empty is tensorflow-datasets' own; source="tfds" only."""
    split: str = "train"
    """Split trained on; slices work, "train[:10%]"; source="tfds" only."""
    validation_split: str = ""
    """Split held out, "validation" or a slice; empty holds out validation_fraction from the end of `split`;
    source="tfds" only."""
    text_field: str = "text"
    """Feature that holds the text of an example; source="tfds" only."""
    validation_fraction: OpenFraction = 0.05
    """Share of the text that is held out (whole documents) when nothing is named for it."""
    max_document_bytes: Annotated[int, Field(ge=1, le=2**31)] = 32 * 2**20
    """A longer document is refused by name: one is held in memory whole, at about 10 bytes per byte of text, or 130
    where a tokenizer.json cannot be applied line by line."""
    tokenizer: str = "bytes"
    """"bytes" (257 tokens), "gpt2" (50,257), "trained" (a byte-level BPE of model.vocab_size tokens, trained on about
    100 MB of the training text), or the path of a Hugging Face tokenizer.json."""
    eos_token: str = ""
    """Token that ends a document; empty finds it (tokenizer_config.json beside the tokenizer.json, then the usual
    names); tokenizer=PATH only."""
    store: Annotated[str, Field(min_length=1)]
    """Folder of the token store: built once, then reused; refused where it was made from something else."""
    mixture: tuple[tuple[str, PositiveFloat], ...] = ()
    """Further token stores to train on, each a folder and its weight; held-out text is that of `store` alone."""
    weight: PositiveFloat = 1.0
    """Weight of `store` itself beside those of `mixture`."""


@dataclass(frozen=True, kw_only=True)
class Training(Section):
    """How much is trained on."""

    steps: PositiveInt
    """Optimizer steps."""
    batch_size: PositiveInt
    """Sequences per optimizer step."""
    sequence_length: PositiveInt
    """T, tokens per sequence."""
    microbatches: PositiveInt = 1
    """Parts that a batch is computed in, gradients summed in float32: less memory, the same result."""
    loss_chunks: PositiveInt = 1
    """Parts that sequences are cut into for the loss, so that the logits of one part at a time are held: less memory,
    the same result. Divides sequence_length."""
    remat: Literal["none", "dots", "attention", "full"] = "none"
    """What the backward pass computes again instead of keeping it: nothing; all but matrix products and attention; all
    but attention; everything within a block. Each takes less memory and more time than the one before."""
    scan_layers: bool = False
    """Consecutive layers of one kind (Focus or dense) as a loop over stacked parameters: compiled once however many
    there are, and with `remat` never more than one at a time in memory. Checkpoints are the same."""


@dataclass(frozen=True, kw_only=True)
class Optimizer(Section):
    """AdamW with decoupled weight decay: linear warm-up, then the peak, then a decay that ends with the run."""

    peak_lr: PositiveFloat
    """Learning rate after the warm-up."""
    warmup_steps: NonNegativeInt
    """Steps of linear warm-up from 0."""
    decay: Literal["cosine", "linear"] = "cosine"
    """Shape of the decay."""
    decay_steps: PositiveInt | None = None
    """Length of the decay at the end of the run; None is everything after the warm-up, a smaller number makes the
    schedule warm-up–stable–decay."""
    final_lr_fraction: Fraction = 0.1
    """Learning rate at the last step, as a share of the peak."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled, on matrices and embeddings other than the router's."""
    clip_norm: PositiveFloat = 1.0
    """Largest global gradient norm; of the routers apart from the rest, so that twins are clipped alike."""
    router_lr_multiplier: NonNegativeFloat = 1.0
    """Learning rate of router projections and centroids, as a multiple of the rest; 0 keeps both as they were drawn
    (a control; potentials and centres of carried balance still move)."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Section):
    """What is measured at every checkpoint, on the same held-out sequences for all models."""

    sequences: PositiveInt = 64
    """Held-out sequences of training.sequence_length tokens."""
    batch_size: PositiveInt = 8
    """Sequences evaluated at once; changes memory, not results."""
    top_k: tuple[NonNegativeInt, ...] = ()
    """Numbers of groups a query reads in the hard evaluations of Focus; empty is attention.top_k alone."""
    allow_noncausal: bool = False
    """Report figures of a routing that sees the future (balance="sinkhorn"), labelled as such."""


@dataclass(frozen=True, kw_only=True)
class Guard(Section):
    """What is done about an update that would harm a model. Decided for each model alone, on the device; the other
    twin goes its own way on the same batch, as it would if it were trained apart."""

    bad_update: Literal["stop", "skip"] = "stop"
    """An update that is not finite, or whose loss is a spike, is never applied: the run ends there, or leaves the
    update out, counts it and goes on (ten in a row end the run all the same)."""
    spike_deviations: PositiveFloat | None = None
    """A loss this many standard deviations above the mean of recent ones is a spike (6 is usual); None looks for
    none."""
    spike_window: Annotated[int, Field(ge=2)] = 100
    """Steps that mean and deviation of the loss are taken over; none is a spike before as many were seen."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Section):
    """When the state is saved."""

    every: PositiveInt
    """Steps between checkpoints at which the models are also evaluated; the last step is always one."""
    keep: PositiveInt = 3
    """Newest of those that are kept."""
    keep_every: PositiveInt | None = None
    """Checkpoints at multiples of this step stay for good."""
    every_minutes: PositiveFloat | None = 15.0
    """Minutes after which the state is saved in between, without evaluation; such a checkpoint, like that of a stop, is
    kept until there are two newer ones. None saves at steps alone."""


@dataclass(frozen=True, kw_only=True)
class Telemetry(Section):
    """What is shown and written while training."""

    log_every: PositiveInt = 10
    """Steps between two training rows in metrics.jsonl."""
    progress: bool = True
    """Show a progress bar."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Mirror metrics.jsonl at Weights & Biases: in files to upload later with `wandb sync`, or as the run goes (needs
    WANDB_API_KEY or `wandb login`)."""
    wandb_project: Annotated[str, Field(max_length=128, pattern=r"^[^/\\#?%:]+$")] = "focus-jax"
    """Project that the run appears in."""
    wandb_entity: str = ""
    """User or team that the project belongs to; empty is the account's own."""
    wandb_checkpoints: bool = False
    """Upload every checkpoint as an artifact."""


AxisSize = Annotated[int, Field(ge=1)] | Literal[-1]


@dataclass(frozen=True, kw_only=True)
class Mesh(Section):
    """How the devices of all processes share the work (README, "Many GPUs"). Changes speed and memory, not results;
    a run may be continued on another mesh. One size may be -1, which takes the devices that are left."""

    data: AxisSize = -1
    """Copies of the model, each with its share of the batch."""
    fsdp: AxisSize = 1
    """Devices that a copy is spread over by the model width, gathered as needed; each has its share of the batch too
    (fully sharded data parallel)."""
    tensor: AxisSize = 1
    """Devices that heads, MLP width and vocabulary are spread over; they share their sequences."""
    join_seconds: PositiveInt = 300
    """Seconds in which all processes of the run must have met, where there are several."""


@dataclass(frozen=True, kw_only=True)
class Profile(Section):
    """A trace of a few steps, in the run's folder profile/ (README, "Profile")."""

    steps: Annotated[str, Field(pattern=r"^([1-9]\d*:[1-9]\d*)?$")] = ""
    """First and last step that are traced, "10:13" (steps 10, 11, 12 and 13); empty traces none."""

    def first_and_last(self) -> tuple[int, int] | None:
        if not self.steps:
            return None
        first, last = map(int, self.steps.split(":"))
        return first, last


@dataclass(frozen=True, kw_only=True)
class Config(Section):
    """One run: a Focus model, its dense twin, or both on the same batches."""

    run: Annotated[str, Field(min_length=1)]
    """Folder of the run; an existing run is continued."""
    seed: NonNegativeInt = 0
    """Initial values, data order and evaluation sample follow from it."""
    models: tuple[ModelName, ...] = ("focus", "dense")
    """Models trained, on the same batches, from the same initial values."""
    model: Model
    attention: Dense | Focus
    data: Data
    training: Training
    optimizer: Optimizer
    mesh: Mesh = field(default_factory=Mesh)
    evaluation: Evaluation = field(default_factory=Evaluation)
    guard: Guard = field(default_factory=Guard)
    checkpoint: Checkpoint
    telemetry: Telemetry = field(default_factory=Telemetry)
    profile: Profile = field(default_factory=Profile)


def dense_twin(config: Config) -> Config:
    """The same run with dense attention: the control that every figure of Focus is compared with."""
    return dataclasses.replace(config, attention=Dense())


def of_model(config: Config, name: ModelName) -> Config:
    """The config that the named model of a run is built from."""
    return dense_twin(config) if name == "dense" else config
