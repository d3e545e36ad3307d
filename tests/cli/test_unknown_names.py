"""Trials and studies that are not there: what is near, and where the others stand."""

import pytest
from tests.cli.sample_stores import made_record

from corewise.cli.render.trial_details import find_trial
from corewise.errors import UserError
from corewise.study.built_in_studies import find_study


def test_the_nearest_id_is_found_among_all_and_none_is_listed() -> None:
    records = [made_record(f"{i:04x}{i:012x}") for i in range(64)] + [made_record("fedcba9876543210")]
    with pytest.raises(UserError, match="did you mean 'fedcba'"):
        find_trial(records, "fedcbx")
    with pytest.raises(UserError) as error:
        find_trial(records, "zz")
    assert str(error.value) == "no trial 'zz' in this store: `corewise show` lists the ids"


def test_an_unknown_study_says_how_a_file_is_named() -> None:
    with pytest.raises(UserError, match=r"give your own file as a path: \./my\.yaml"):
        find_study("mine")
