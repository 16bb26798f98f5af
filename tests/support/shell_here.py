"""Shell verbs inside the process of a test: what they do and say, without the start of a Python for each."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from fedmon.cli import main
from fedmon.common.log import OUR_LOGGER
from tests.support.environment import plain_environment


def fedmon_here(
    *arguments: object, environ: Mapping[str, str] | None = None, cwd: Path | None = None, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one verb to its end, without a terminal: none that takes signals, starts threads or changes its program."""
    words, out, err, typing = list(map(str, arguments)), _stream(), _stream(), _stream(typed)
    code: object = 0
    with (
        mock.patch.dict(os.environ, plain_environment() if environ is None else dict(environ), clear=True),
        mock.patch.object(sys, "stdin", typing),
        mock.patch.object(tempfile, "tempdir", tempfile.tempdir),
        loggers_as_they_were(),
        contextlib.chdir(cwd or os.curdir),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, _text(out), _text(err))


def document_here(*words: object, environ: Mapping[str, str] | None = None) -> Any:
    """Run one verb with ``--json``, which must succeed, and return the document that it prints."""
    return document(fedmon_here(*words, "--json", environ=environ))


def document(done: subprocess.CompletedProcess[str], *, code: int = 0) -> Any:
    """Return the one document that a verb with ``--json`` printed, which must have ended with ``code``."""
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


@contextlib.contextmanager
def loggers_as_they_were() -> Iterator[None]:
    """Undo what a verb does to our loggers."""
    logger = logging.getLogger(OUR_LOGGER)
    handlers, level = list(logger.handlers), logger.level
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)


def _stream(text: str = "") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
