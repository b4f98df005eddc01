"""What a run will need on its devices, before anyone pays for them."""
