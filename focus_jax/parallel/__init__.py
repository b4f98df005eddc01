"""Many devices and processes: the mesh, the table from logical axes to mesh axes, attention over batch and heads.

Everything that computes is written for whole arrays. Only three things here say where parts of them lie: parameters and
activations by the names of their axes (`axes`), attention by shard_map (`attention`), and batches by rows (`batches`).
How several processes meet is in `joining`, and how they agree in `hosts`.
"""
