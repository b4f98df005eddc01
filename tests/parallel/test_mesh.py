"""Meshes and the table of axes by shapes alone: what cannot be divided is refused by name, before anything runs."""

import dataclasses

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from focus_jax.config import Config, Dense, Focus, Mesh, gpt2, llama
from focus_jax.config_loading import check
from focus_jax.errors import UserError
from focus_jax.parallel.axes import TABLE, parameter_shardings
from focus_jax.parallel.mesh import check_batch, check_heads, mesh_shape
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import initial_state, parameter_axes, state_shardings
from tests.changes import changed


def abstract_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1) -> AbstractMesh:
    return AbstractMesh((data, fsdp, tensor), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


@pytest.mark.parametrize(
    ("wanted", "devices", "shape"),
    [
        (Mesh(), 8, (8, 1, 1)),
        (Mesh(data=2, fsdp=-1, tensor=2), 8, (2, 2, 2)),
        (Mesh(data=1, fsdp=4, tensor=-1), 4, (1, 4, 1)),
    ],
)
def test_minus_one_takes_the_devices_that_are_left(wanted, devices, shape):
    assert tuple(mesh_shape(wanted, devices).values()) == shape


@pytest.mark.parametrize(
    ("wanted", "devices", "said"),
    [
        (Mesh(data=2, fsdp=2), 8, r"^mesh: data 2 · fsdp 2 · tensor 1 make 4 devices, and there are 8"),
        (Mesh(fsdp=3), 8, r"^mesh\.data: 8 devices are no multiple of fsdp 3 · tensor 1"),
    ],
)
def test_sizes_that_are_not_the_devices_are_refused(wanted, devices, said):
    with pytest.raises(UserError, match=said):
        mesh_shape(wanted, devices)


def test_only_one_size_is_left_open(run):
    with pytest.raises(UserError, match=r"^mesh: only one of data, fsdp and tensor"):
        check(changed(run, mesh={"fsdp": -1}))
    with pytest.raises(UserError, match=r"^mesh\.tensor"):
        check(changed(run, mesh={"tensor": 0}))


def test_batches_and_heads_that_do_not_divide_are_refused(run):
    with pytest.raises(UserError, match=r"^training\.batch_size: 4 sequences in 2 microbatches .* data 2 · fsdp 2"):
        check_batch(changed(run, training={"microbatches": 2}).training, abstract_mesh(data=2, fsdp=2))
    check_batch(run.training, abstract_mesh(data=2, fsdp=2))
    with pytest.raises(UserError, match=r"^model\.kv_heads: 2 do not divide among the 4 devices of mesh axis tensor"):
        check_heads(run.model, abstract_mesh(tensor=4))
    check_heads(run.model, abstract_mesh(tensor=2))


@pytest.mark.parametrize(
    ("model", "sizes", "said"),
    [
        ({"mlp_width": 50}, {"tensor": 4}, r"^blocks\.0\.mlp\.down\.kernel: dimension 0 \(mlp, 50\) .* tensor \(4\)"),
        ({"vocab_multiple": 1}, {"tensor": 2}, r"^embedding\.embedding: dimension 0 \(vocab, 257\) .* tensor \(2\)"),
        ({}, {"fsdp": 3}, r"^blocks\.0\.attention\.key\.kernel: dimension 0 \(width, 32\) .* fsdp \(3\)"),
    ],
)
def test_a_dimension_that_does_not_divide_is_named(run, model, sizes, said):
    run = changed(run, model=model)
    with pytest.raises(UserError, match=said):
        state_shardings(run, make_optimizer(run), abstract_mesh(**sizes))


def test_two_dimensions_on_one_mesh_axis_clash(run):
    shapes = jax.eval_shape(lambda: initial_state(run, make_optimizer(run))).params
    clashing = {**TABLE, "width": ("tensor",)}
    said = r"kernel: dimension 1 \(.*\) is mapped to mesh axis tensor, which dimension 0 \(width\) has"
    with pytest.raises(UserError, match=said):
        parameter_shardings(abstract_mesh(), shapes, parameter_axes(run), clashing)


FAMILIES = {
    "gpt2": gpt2(vocab_size=257, width=32, layers=1, heads=4),
    "llama": dataclasses.replace(
        llama(vocab_size=257, width=32, layers=1, heads=4, kv_heads=2, mlp_width=64), qk_norm=True
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_matrix_is_divided_and_its_moments_lie_as_it_does(run: Config, family):
    run = changed(run, model=dataclasses.asdict(FAMILIES[family]))
    for of_model in (run, changed(run, attention=Dense())):
        shardings = state_shardings(of_model, make_optimizer(of_model), abstract_mesh(2, 2, 2))
        moments = shardings.opt_state[2]
        assert moments.mu == moments.nu == shardings.params
        for path, sharding in jax.tree.leaves_with_path(shardings.params):
            name = jax.tree_util.keystr(path)
            divided = {axis for entry in sharding.spec for axis in [entry] if axis}
            if "router" in name or "norm" in name:
                assert not divided
            elif "kernel" in name or ("'embedding']['embedding" in name and "position" not in name):
                assert divided == {"fsdp", "tensor"}
        everything_else = shardings._replace(params=None, opt_state=None)
        assert {sharding.spec for sharding in jax.tree.leaves(everything_else)} == {PartitionSpec()}
    assert isinstance(run.attention, Focus)
