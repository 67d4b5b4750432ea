"""Exceptions are named as users import them: Spark's messages and pickles go by that name."""

from __future__ import annotations

import pickle

from cordwood import errors


def test_every_exception_says_that_it_is_of_the_public_module() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__]
    assert {kind.__module__ for kind in kinds} == {"cordwood.errors"}
    assert pickle.loads(pickle.dumps(errors.OwnerFenced)) is errors.OwnerFenced
    print(f"{len(kinds)} exceptions")
