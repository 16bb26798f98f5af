"""Read the code of one training plan in a process of its own that may use little time and memory.

Run as a script with the bytes of the plan on stdin. Prints the line ``parsed`` once they are known to be Python, and at
the end one JSON object with ``minified_sha256`` and ``problem``. It imports nothing of ours, so that it runs isolated
from paths, environment and user site.
"""

from __future__ import annotations

import ast
import hashlib
import json
import resource
import sys
import warnings

CPU_S = 5
MEMORY_BYTES = 512 * 1024 * 1024
PARSED = "parsed"


def main() -> None:
    """Check what stdin holds and print the verdict."""
    _limit()
    source = sys.stdin.buffer.read()
    warnings.simplefilter("ignore")
    digest, problem = None, ""
    try:
        ast.parse(source)
        sys.stdout.write(f"{PARSED}\n")
        sys.stdout.flush()
        digest = minified_sha256(source)
    except (SyntaxError, ValueError) as error:
        problem = _described(error)
    except RecursionError:
        problem = "the code is nested too deeply to be read"
    except MemoryError:
        problem = f"the code is too large or too deeply nested to be read within {MEMORY_BYTES >> 20} MB"
    json.dump({"minified_sha256": digest, "problem": problem}, sys.stdout)


def minified_sha256(source: bytes) -> str | None:
    """Return the digest of the code without comments, layout and ``(object)``; None when that form cannot be made."""
    import python_minifier

    try:
        minified = python_minifier.minify(
            source,
            remove_annotations=False,
            combine_imports=False,
            remove_pass=False,
            hoist_literals=False,
            rename_locals=False,
            convert_posargs_to_args=False,
            remove_explicit_return_none=False,
            remove_builtin_exception_brackets=False,
            constant_folding=False,
            remove_dead_branches=False,
        )
    except python_minifier.UnstableMinification:
        return None
    return hashlib.sha256(minified.encode("utf-8", "surrogatepass")).hexdigest()


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _described(error: SyntaxError | ValueError) -> str:
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno}: {error.msg}"
    return f"not Python: {error}"


if __name__ == "__main__":
    main()
