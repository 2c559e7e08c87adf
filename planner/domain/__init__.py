"""The vocabulary: frozen records and arrays, no files, no printing, NumPy at most."""
