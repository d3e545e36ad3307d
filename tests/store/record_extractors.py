"""What tests keep of records; in a module of its own, where other processes find it."""

import os

PARENT = "COREWISE_TEST_PARENT"


def trial_id(record, entry):
    return record.trial_id


def reader(record, entry):
    """The process that read the record."""
    return os.getpid()


def dying_elsewhere(record, entry):
    """As `trial_id`, but a process other than the tests' own dies of it."""
    if os.environ[PARENT] != str(os.getpid()):
        os._exit(9)
    return record.trial_id


def failing(record, entry):
    raise ZeroDivisionError(record.trial_id)


def without_params(record):
    return type(record)(trial_id=record.trial_id, study=record.study, status=record.status)
