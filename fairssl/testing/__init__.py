"""Contract checks for plugins, ours and outsiders': what `fairssl check` prints and what a plugin's own test calls.

    from fairssl import testing

    def test_contract():
        testing.assert_contract("objective", "vicreg")

Parts are checked by real steps of the one training loop, on 48 generated images of 32 pixels, with a small encoder on
the CPU: seconds per plugin. A check passes, fails, or is skipped, and says why in one line.
"""

from fairssl.testing.check import (
    Check,
    Skipped,
    assert_contract,
    check,
    check_dataset,
    check_encoder,
    check_head,
    check_method,
    check_metric,
    check_objective,
)

__all__ = [
    "Check",
    "Skipped",
    "assert_contract",
    "check",
    "check_dataset",
    "check_encoder",
    "check_head",
    "check_method",
    "check_metric",
    "check_objective",
]
