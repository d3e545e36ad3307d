"""Trials and studies that are not there: what is near, and where the others stand."""

import pytest
from made_stores import made_record

from corewise.cli.one_trial import find_trial
from corewise.spec.errors import UserError
from corewise.spec.shipped import locate_study


def test_the_nearest_id_is_found_among_all_and_none_is_listed() -> None:
    records = [made_record(f"{i:04x}{i:012x}") for i in range(64)] + [made_record("fedcba9876543210")]
    with pytest.raises(UserError, match="did you mean 'fedcba'"):
        find_trial(records, "fedcbx")
    with pytest.raises(UserError) as told:
        find_trial(records, "zz")
    assert str(told.value) == "no trial 'zz' in this store: `corewise show` lists the ids"


def test_an_unknown_study_says_how_a_file_is_named() -> None:
    with pytest.raises(UserError, match=r"a file of yours: by its path, as in \./mine\.yaml"):
        locate_study("mine")
