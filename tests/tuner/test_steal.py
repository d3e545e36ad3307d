"""When a sampling counts as disturbed by the hypervisor."""

from corewise.tuner.steal import FEW, LONG_STEP_S, MUCH, Disturbances, stolen_share


def test_the_share_is_of_the_time_the_cpus_were_given() -> None:
    assert stolen_share({"steal_s": 0.5, "own_cpu_s": 10.0}) == 0.05
    assert stolen_share({"samples_per_s": 3.0}) == 0.0


def test_much_is_a_disturbance_where_little_is_usual() -> None:
    disturbances = Disturbances()
    assert not any(disturbances.is_one(0.001) for _ in range(2 * FEW))
    assert disturbances.is_one(2 * MUCH)


def test_what_others_always_take_is_none_once_that_is_known() -> None:
    disturbances = Disturbances()
    told = [disturbances.is_one(2 * MUCH) for _ in range(2 * FEW)]
    assert told == [True] * FEW + [False] * FEW
    assert disturbances.is_one(4 * MUCH)


def test_a_long_step_is_not_taken_again() -> None:
    disturbances = Disturbances()
    assert disturbances.is_one(2 * MUCH, step_s=LONG_STEP_S / 2)
    assert not disturbances.is_one(2 * MUCH, step_s=2 * LONG_STEP_S)
