"""What Focus costs and gains against dense attention at equal tokens, with controls and seeds."""
