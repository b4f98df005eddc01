"""What attention and models cost, counted once: for telemetry, the benchmarks and the plan."""
