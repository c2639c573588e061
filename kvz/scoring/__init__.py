"""Scores of context pairs, and the budget that turns them into pairs kept. One method a file; `registry` names them."""
