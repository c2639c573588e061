"""Steps without the host: the same answers as the plain way, and nothing that would wait or grow."""

from __future__ import annotations

from tests.tiny import FAMILIES, make_model_folder  # noqa: F401

QUESTIONS = ["Where is the spare key?", "Who keeps the ledger and what colour is it?", "When?"]
WAITING = {"_local_scalar_dense", "nonzero", "item", "is_nonzero", "masked_select", "unique", "_unique2", "equal"}
