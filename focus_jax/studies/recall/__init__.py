"""Does the router learn which distant tokens matter? Associative recall beyond the window, many arms, several seeds."""
