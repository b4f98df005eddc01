"""What is read out of a program's text: kinds, bytes, loops."""

from focus_jax.plan.collectives import Moved, collectives

HLO = """
HloModule jit_step

%region_0.1 (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[] add(%a, %b)
}

%async_computation (p: bf16[8,16]) -> bf16[2,16] {
  ROOT %reduce-scatter.1 = bf16[2,16]{1,0} reduce-scatter(%p), replica_groups=mesh['data'=2,'fsdp'=4] {'fsdp'}, to_apply=%region_0.1
}

%body.1 (t: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {
  %all-gather-start.1 = ((bf16[2,16]{1,0}), bf16[8,16]{1,0}) all-gather-start(%x), replica_groups=[2,4]<=[8]
  %all-gather-done.1 = bf16[8,16]{1,0} all-gather-done(%all-gather-start.1)
  %reduce-scatter-start = ((bf16[8,16]), bf16[2,16], u32[]) async-start(%g), calls=%async_computation
}

%condition.1 (t: (s32[], f32[4,4])) -> pred[] {
  ROOT %compare = pred[] compare(%i, %n), direction=LT
}

%applied (p: f32[]) -> f32[] {
  ROOT %all-reduce.9 = f32[] all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%region_0.1
}

%skipped (p: f32[]) -> f32[] {
  ROOT %p = f32[] parameter(0)
}

ENTRY %main.1 (a: f32[4,4]) -> f32[4,4] {
  %while.1 = (s32[], f32[4,4]) while(%t), condition=%condition.1, body=%body.1, backend_config={"known_trip_count":{"n":"3"}}
  %reduce-scatter-start.2 = ((f32[8,4]{1,0}, f32[8]{0}), (f32[1,4]{1,0}, f32[1]{0})) reduce-scatter-start(%a, %b)
  %all-reduce-start.1 = ((f32[4,4]{1,0}, f32[5]{0}), (f32[4,4]{1,0}, f32[5]{0})) all-reduce-start(%a, %b), replica_groups=[1,8]<=[8], to_apply=%region_0.1
  %conditional.1 = f32[] conditional(%which, %c, %d), branch_computations={%applied, %skipped}
}
"""  # noqa: E501 - as XLA prints it


def test_loops_calls_and_branches_are_counted():
    assert collectives(HLO) == {
        "all-gather": Moved(3, 3 * 8 * 16 * 2),
        "reduce-scatter": Moved(3 + 1, 3 * 8 * 16 * 2 + (8 * 4 + 8) * 4),
        "all-reduce": Moved(2, (4 * 4 + 5) * 4 + 4),
    }
