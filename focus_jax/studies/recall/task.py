"""The task: a sequence shows symbols with their values, and then asks for the value of each.

A key token names a symbol and a value at once, a query token a symbol; as many tokens without meaning as the window is
wide lie between, so every key is distant to every query. In form `kind` the initial embeddings of a symbol's keys and
query share a feature, the symbol's kind; in form `apart` they share nothing, and which keys belong to which query has
to be learned.

Letters: B batch, T tokens, N symbols shown, V vocabulary, D width.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from focus_jax.training.loss import NO_TARGET

Form = Literal["kind", "apart"]

SYMBOLS, SHOWN, VALUES, KINDS, FILLERS = 32, 24, 16, 8, 32
WINDOW = 4
FIRST_QUERY = SYMBOLS * VALUES
FIRST_FILLER = FIRST_QUERY + SYMBOLS
VOCABULARY = FIRST_FILLER + FILLERS
TOKENS = 2 * SHOWN + WINDOW
CHANCE = 1 / VALUES


class Batch(NamedTuple):
    inputs_BT: jax.Array
    targets_BT: jax.Array
    """The value of the symbol at query tokens, no target elsewhere."""


def draw(key: jax.Array, batch_size: int) -> Batch:
    return jax.vmap(_sequence)(jax.random.split(key, batch_size))


def _sequence(key: jax.Array) -> Batch:
    symbols_key, values_key, order_key, filler_key = jax.random.split(key, 4)
    symbol_N = jax.random.permutation(symbols_key, SYMBOLS)[:SHOWN]
    value_N = jax.random.randint(values_key, (SHOWN,), 0, VALUES)
    order_N = jax.random.permutation(order_key, SHOWN)
    filler = FIRST_FILLER + jax.random.randint(filler_key, (WINDOW,), 0, FILLERS)
    inputs_T = jnp.concatenate([symbol_N * VALUES + value_N, filler, FIRST_QUERY + symbol_N[order_N]])
    targets_T = jnp.concatenate([jnp.full(SHOWN + WINDOW, NO_TARGET), value_N[order_N]])
    return Batch(inputs_T, targets_T)


def initial_embeddings(key: jax.Array, form: Form, *, rows: int, width: int, std: float) -> jax.Array:
    """(V, D): a token's embedding is the sum of its features, each a random vector."""
    draw_features = partial(_features, width=width, std=std)
    keys = jax.random.split(key, 6)
    of_key_ND, of_query_ND = draw_features(keys[0], SYMBOLS), draw_features(keys[1], SYMBOLS)
    if form == "kind":
        kind_ND = draw_features(keys[2], KINDS)[jnp.arange(SYMBOLS) % KINDS]
        of_key_ND, of_query_ND = of_key_ND + kind_ND, of_query_ND + kind_ND
    keys_VD = (of_key_ND[:, None] + draw_features(keys[3], VALUES)).reshape(-1, width)
    rest_VD = draw_features(keys[4], rows - FIRST_FILLER)
    return jnp.concatenate([keys_VD, of_query_ND, rest_VD])


def _features(key: jax.Array, number: int, *, width: int, std: float) -> jax.Array:
    return std * jax.random.normal(key, (number, width))
