"""Models: found, read from their files, identified, run by one forward pass; their tokenizers and templates."""
