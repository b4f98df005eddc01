"""Calls of the attention functions that between them meet every branch of the kernels."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from focus_jax.ops import dense_attention, routed_attention

TOLERANCE = {"float32": 2e-5, "bfloat16": 4e-2}


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of dense_attention, or of routed_attention where there are groups."""

    name: str
    T: int = 128
    S: int = 128
    H: int = 2
    J: int = 2
    C: int = 32
    B: int = 2
    query_offset: int = 0
    scale: float | None = None
    dtype: str = "float32"
    K: int = 0
    M: int = 1
    N: int = 1
    window: int = 16
    skewed: bool = False
    """Everything in one group."""
    grouped: bool = True
    """False: no token has a group."""
    gates: str = ""
    """"q", "k" or "qk"."""

    def arguments(self) -> dict[str, jax.Array]:
        """All arrays of the call, NaN in the keys that no query reads."""
        rng = np.random.default_rng(len(self.name))
        q = rng.normal(size=(self.B, self.T, self.H, self.C))
        k, v = rng.normal(size=(2, self.B, self.S, self.J, self.C))
        arrays = {"q_BTHC": q, "k_BSJC": k, "v_BSJC": v}
        integers, gates = {}, {}
        if self.K:
            query_groups, key_groups = self.groups(rng)
            integers = {"query_groups_BTM": query_groups, "key_groups_BSN": key_groups}
            if "q" in self.gates:
                gates["query_gate_BTM"] = rng.normal(size=query_groups.shape)
            if "k" in self.gates:
                gates["key_gate_BS"] = rng.normal(size=key_groups.shape[:2])
        unread_BS = ~self.kept(integers).any(axis=1)
        for name in ("k_BSJC", "v_BSJC"):
            arrays[name][unread_BS] = np.nan
        return (
            {name: jnp.asarray(array, self.dtype) for name, array in arrays.items()}
            | {name: jnp.asarray(array, jnp.float32) for name, array in gates.items()}
            | {name: jnp.asarray(array, jnp.int32) for name, array in integers.items()}
        )

    def groups(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Different groups for each token, a tenth of them missing; the same token names the same on both sides."""
        tokens = max(self.S, self.query_offset + self.T)
        most = max(self.M, self.N)
        groups = rng.permuted(np.broadcast_to(np.arange(self.K), (self.B, tokens, self.K)), axis=2)[..., :most]
        if self.skewed:
            groups[..., 0] = 1 if self.K > 1 else 0
        groups[rng.random(groups.shape) < (0.1 if self.grouped else 1.0)] = -1
        return groups[:, self.query_offset : self.query_offset + self.T, : self.M], groups[:, : self.S, : self.N]

    def kept(self, groups: dict[str, np.ndarray]) -> np.ndarray:
        distance_TS = self.query_offset + np.arange(self.T)[:, None] - np.arange(self.S)[None, :]
        kept_BTS = np.broadcast_to(distance_TS >= 0, (self.B, self.T, self.S))
        if not groups:
            return kept_BTS
        query_BT1M1 = groups["query_groups_BTM"][:, :, None, :, None]
        key_B1S1N = groups["key_groups_BSN"][:, None, :, None, :]
        shared_BTS = ((query_BT1M1 == key_B1S1N) & (query_BT1M1 >= 0)).any(axis=(3, 4))
        return kept_BTS & ((distance_TS <= self.window) | shared_BTS)

    def differentiable(self) -> tuple[str, ...]:
        gates = [name for letter, name in (("q", "query_gate_BTM"), ("k", "key_gate_BS")) if letter in self.gates]
        return ("q_BTHC", "k_BSJC", "v_BSJC", *gates)

    def run(self, arguments: dict[str, jax.Array], implementation: str) -> jax.Array:
        common = {"query_offset": self.query_offset, "scale": self.scale, "implementation": implementation}
        if not self.K:
            return dense_attention(**arguments, **common)
        return routed_attention(**arguments, num_groups=self.K, window=self.window, **common)

    def run_with_gradients(
        self, arguments: dict[str, jax.Array], do: jax.Array, implementation: str
    ) -> dict[str, jax.Array]:
        """The output under "o", and the gradient of every differentiable argument under its name."""
        chosen = {name: arguments[name] for name in self.differentiable()}
        o, pull = jax.vjp(lambda chosen: self.run(arguments | chosen, implementation), chosen)
        return {"o": o, **pull(do)[0]}

    def compiled(self, arguments: dict[str, jax.Array], do: jax.Array, implementation: str) -> dict[str, jax.Array]:
        """As run_with_gradients. Hardly optimized: compiling takes most of the time."""
        program = jax.jit(lambda arguments, do: self.run_with_gradients(arguments, do, implementation))
        return program.lower(arguments, do).compile({"xla_backend_optimization_level": 0})(arguments, do)

    def check(self, implementation: str) -> None:
        """Output and all gradients against the float32 definition, each in its argument's type."""
        arguments = self.arguments()
        do = jnp.asarray(np.random.default_rng(1).normal(size=arguments["q_BTHC"].shape), self.dtype)
        computed = self.compiled(arguments, do, implementation)
        exact = {name: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for name, x in arguments.items()}
        for name, array in self.compiled(exact, do.astype(jnp.float32), "reference").items():
            assert computed[name].dtype == arguments.get(name, do).dtype, name
            size = float(jnp.max(jnp.abs(array), initial=1.0))  # without gates there are no gradients of them
            scaled, expected = computed[name].astype(jnp.float32) / size, array / size
            np.testing.assert_allclose(scaled, expected, atol=TOLERANCE[self.dtype], rtol=0, err_msg=name)


CALLS = (
    Call(name="dense, odd length, grouped heads, odd head size", T=100, S=100, H=4, C=40),
    Call(name="dense, late queries, unread tail", T=50, S=130, H=4, J=1, query_offset=60),
    Call(name="dense, more queries than keys", T=130, S=50, query_offset=7, scale=-0.3),
    Call(name="routed, two groups, both gates, odd length", T=100, S=100, H=4, K=4, M=2, window=10, gates="qk"),
    Call(name="routed, shared groups", T=100, S=100, H=4, C=40, K=4, M=2, N=2, window=10),
    Call(name="routed, 64 groups, many shared", T=70, S=70, H=1, J=1, K=64, M=20, N=20, window=5),
    Call(name="routed, late queries, query gate", T=50, S=130, H=4, J=1, query_offset=60, K=5, window=20, gates="q"),
    Call(name="routed, one group holds all, no window, key gate", T=129, S=129, K=3, skewed=True, window=0, gates="k"),
    Call(name="routed, no groups at all", T=63, S=63, K=3, grouped=False, gates="k"),
    Call(name="routed, one group, wide window", T=200, S=190, K=1, window=100),
    Call(name="routed, all groups, some see nothing", T=40, S=20, query_offset=30, K=3, M=3, window=15, gates="qk"),
    Call(name="routed, window reaches everything", T=70, S=70, K=2, window=1000),
    Call(name="routed, M = 0", T=100, S=100, K=4, M=0),
    Call(name="routed, one query of a decoder", T=1, S=100, H=4, query_offset=99, K=4, M=2),
    Call(name="routed, bfloat16", C=64, K=4, M=2, gates="qk", dtype="bfloat16"),
)
