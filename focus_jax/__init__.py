"""Focus attention in JAX: pretrain a Focus transformer beside its dense twin."""
