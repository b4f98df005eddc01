"""What several operations read is computed once: a compiler that fuses would do it again for each of them."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from focus_jax.config import Config
from focus_jax.model import as_trained
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import graph_of, initial_state
from focus_jax.training.step import accumulate
from tests.changes import changed

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="about what the CPU's compiler fuses")


@pytest.fixture
def run(run: Config) -> Config:
    """Equal from test to test."""
    model = {"norm": "layernorm", "biases": True}
    return changed(run, run="run", model=model, data={"files": (), "store": "store"})


@functools.cache
def gradient_program(run: Config, layers: int) -> str:
    """Loss and gradients of a batch, compiled."""
    run = changed(run, model={"layers": layers})
    state = jax.eval_shape(lambda: initial_state(run, make_optimizer(run)))
    tokens = jax.ShapeDtypeStruct((run.training.batch_size, run.training.sequence_length), jnp.int32)
    reading = as_trained(run.attention, 0)
    gradients = jax.jit(lambda *given: accumulate(run, graph_of(run), reading, *given).gradients)
    return gradients.lower(state, tokens, tokens).compile().as_text()


def test_sines_and_cosines_are_taken_once_for_all_layers(run: Config):
    program = gradient_program(run, layers=3)
    assert len(re.findall(r" = f32\[\S+ cosine\(", program)) == 1
    assert len(re.findall(r" = f32\[\S+ sine\(", program)) == 1


def test_no_operation_reads_more_arrays_in_a_deeper_model(run: Config):
    assert most_read(gradient_program(run, layers=3)) == most_read(gradient_program(run, layers=2))


def most_read(program: str) -> int:
    """Arrays that one fused operation reads."""
    return max(len(re.findall("%", operands)) for operands in re.findall(r" fusion\((.*?)\), kind=", program))
