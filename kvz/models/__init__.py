"""All that touches transformers: finding and loading models, tokenizers, fingerprints, the attention function."""
