"""Errors of `corewise primitives`: where, what, and what to do next."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from corewise.cli.app import build_app
from corewise.errors import UserError

APP = build_app()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet51"], "did you mean 'resnet50'?"),
        (["resnet50", "--batch", "0"], "--batch 0: the batch must be an integer of at least 1"),
        (["resnet50", "--threads", "0"], "--threads 0: at least 1"),
        (["resnet50", "--rounds", "0"], "--rounds 0: at least 1"),
        (["resnet50", "--mode", "trian"], "did you mean 'train'?"),
        (["resnet50", "--runtime", "jax"], "--runtime jax: only models on torch can be broken down"),
        (["resnet50", "--set", "execution=compile"], "fused kernels cannot run alone"),
        (["resnet50", "--set", "processes=2"], "in one process"),
        (["resnet50", "--threads", "1", "--set", "threads=2"], "differ; pass only one"),
        (["resnet50", "--set", "layout=nhwc"], "--set layout=nhwc"),
        (["resnet50", "--args", "image_size"], "write it as NAME=VALUE"),
        (["resnet50", "--report", "nowhere/page.html"], "does not exist; create it"),
        (["own.py"], "name the function in it"),
    ],
)
def test_a_mistake_is_reported_before_anything_is_measured(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(APP, ["primitives", *arguments])
    assert isinstance(done.exception, UserError)
    assert message in str(done.exception)


def test_a_page_that_may_not_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(APP, ["primitives", "resnet18", "--report", str(tmp_path)])
    assert isinstance(done.exception, UserError)
    assert "it is a folder; choose another file with --report" in str(done.exception)
