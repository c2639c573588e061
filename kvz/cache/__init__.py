"""The KV cache in three shapes: full while compressing, ragged once pairs are evicted, and a question's tail."""
