"""How often the verdict on collusion is right, on ensembles whose training is known."""
