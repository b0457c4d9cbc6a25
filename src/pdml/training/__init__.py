"""Where the parts meet: the loop, its state, and the recipes of all methods."""
