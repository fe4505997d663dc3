"""The llama.cpp engine, through xllamacpp."""
