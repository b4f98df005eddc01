"""Every attention kernel on the device at hand against the float32 definition, computed on the CPU."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focus_jax.bench.programs import Program, compile_all, first_line
from focus_jax.bench.report import Report
from focus_jax.bench.routing import balanced_groups
from focus_jax.ops import dense_attention, routed_attention

TOLERANCE = 0.01
"""Of ‖computed − exact‖ / ‖exact‖: bfloat16 keeps 8 bits, and p and ds are rounded to it."""


class Check(NamedTuple):
    name: str
    attention: Callable[..., jax.Array]
    """Its keyword `implementation` is open."""
    arguments: Mapping[str, np.ndarray]
    """By name; those of floating type are differentiated."""


def checks(T: int = 700, heads: int = 4, kv_heads: int = 2) -> Sequence[Check]:
    """All kernels with odd lengths and grouped heads, for heads of 64 and 128 channels."""
    rng = np.random.default_rng(0)
    two_groups = balanced_groups(2, T, 4, 2)
    found = []
    for channels in (64, 128):
        qkv = {
            name: rng.normal(size=(2, T, count, channels)).astype(jnp.bfloat16)
            for name, count in (("q_BTHC", heads), ("k_BSJC", kv_heads), ("v_BSJC", kv_heads))
        }
        routed = partial(routed_attention, num_groups=4, window=40)
        shared = {"query_groups_BTM": two_groups, "key_groups_BSN": two_groups}
        gated = {
            "query_groups_BTM": two_groups,
            "key_groups_BSN": two_groups[..., :1],
            "query_gate_BTM": rng.normal(size=two_groups.shape).astype(np.float32),
            "key_gate_BS": rng.normal(size=two_groups.shape[:2]).astype(np.float32),
        }
        found += [
            Check(f"dense, head {channels}", dense_attention, qkv),
            Check(f"shared groups, head {channels}", routed, qkv | shared),
            Check(f"gated, head {channels}", routed, qkv | gated),
        ]
    return found


def check_kernels(report: Report) -> bool:
    """Adds a row per check; whether all passed."""
    to_check = checks()
    compiled, failures = compile_all([program_of(check, "pallas") for check in to_check])
    for name, error in failures.items():
        report.add({"kind": "check", "what": name, "passed": False, "error": error})
    with ThreadPoolExecutor(len(to_check)) as pool:
        exact = {check.name: pool.submit(exact_results, check) for check in to_check if check.name in compiled}
        passed = [check_one(compiled[name], job.result(), name, report) for name, job in exact.items()]
    return all(passed) and not failures


def check_one(compiled, exact: Mapping[str, np.ndarray], name: str, report: Report) -> bool:
    try:
        first, second = (jax.device_get(compiled.executable(*compiled.arguments)) for _ in range(2))
    except Exception as error:
        report.add({"kind": "check", "what": name, "passed": False, "error": first_line(error)})
        return False
    errors = {output: relative_error(first[output], exact[output]) for output in exact}
    repeatable = all(np.array_equal(first[output], second[output]) for output in exact)
    passed = repeatable and max(errors.values()) <= TOLERANCE
    report.add({"kind": "check", "what": name, "passed": passed, "repeatable": repeatable, "errors": errors})
    return passed


def program_of(check: Check, implementation: str) -> Program:
    """Results by name: the output under "o", gradients under those of their arguments."""

    def run(do: jax.Array, arguments: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        differentiated = {name: x for name, x in arguments.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        o, pull = jax.vjp(
            lambda chosen: check.attention(**{**arguments, **chosen}, implementation=implementation), differentiated
        )
        return {"o": o, **pull(do)[0]}

    do = np.random.default_rng(1).normal(size=check.arguments["q_BTHC"].shape)
    return Program(check.name, run, (do.astype(check.arguments["q_BTHC"].dtype), dict(check.arguments)))


def exact_results(check: Check) -> Mapping[str, np.ndarray]:
    _, run, (do, arguments) = program_of(check, "reference")
    exact = {name: x.astype(np.float32) if x.dtype == jnp.bfloat16 else x for name, x in arguments.items()}
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return jax.device_get(jax.jit(run)(do.astype(np.float32), exact))


def relative_error(computed: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(computed.astype(np.float32) - exact) / np.linalg.norm(exact))
