"""Mistakes in the words of `corewise primitives`: where, what, and what to do next."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from corewise.cli.main import app
from corewise.spec.errors import UserError


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["resnet51"], "did you mean 'resnet50'?"),
        (["resnet50", "--batch", "0"], "--batch 0: a batch is a whole number of at least 1"),
        (["resnet50", "--threads", "0"], "--threads 0: at least 1"),
        (["resnet50", "--rounds", "0"], "--rounds 0: at least 1"),
        (["resnet50", "--mode", "trian"], "did you mean 'train'?"),
        (["resnet50", "--runtime", "jax"], "--runtime jax: models are taken apart on torch only"),
        (["resnet50", "--set", "execution=compile"], "fused kernels are no operators"),
        (["resnet50", "--set", "processes=2"], "in one process"),
        (["resnet50", "--threads", "1", "--set", "threads=2"], "give one of them"),
        (["resnet50", "--set", "layout=nhwc"], "--set layout=nhwc"),
        (["resnet50", "--args", "image_size"], "write it as NAME=VALUE"),
        (["resnet50", "--report", "nowhere/page.html"], "there is no folder"),
        (["own.py"], "name the function in it"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(words: list[str], told: str) -> None:
    done = CliRunner().invoke(app, ["primitives", *words])
    assert isinstance(done.exception, UserError)
    assert told in str(done.exception)


def test_a_page_that_may_not_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["primitives", "resnet18", "--report", str(tmp_path)])
    assert isinstance(done.exception, UserError)
    assert "it is a folder; name another file with --report" in str(done.exception)
