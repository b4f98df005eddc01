"""Loss, optimizer, train state, train step, checkpoints and the loop."""
