"""What `scripts/gpu-check` measures on a machine that has this repository, torch, Triton and transformers.

No weights and no hub: models have random weights in the geometry of known ones, archives random pairs.
"""
