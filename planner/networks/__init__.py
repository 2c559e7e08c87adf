"""Where networks come from: the zoo of bundled families, and the builder that they share."""
