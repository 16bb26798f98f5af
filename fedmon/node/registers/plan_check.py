"""Read the code of one training plan in a separate process that may use little time and memory.

Run as a script with the bytes of the plan on stdin. Prints one JSON object: ``parses``, ``minified_sha256`` and
``problem``. It imports nothing of ours, so that it runs isolated from paths, environment and user site.
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


def main() -> None:
    """Check the plan on stdin and print the verdict."""
    for limit, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(limit, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    source = sys.stdin.buffer.read()
    warnings.simplefilter("ignore")
    parses, digest, problem = False, None, ""
    try:
        ast.parse(source)
        parses = True
        digest = minified_sha256(source)
    except (SyntaxError, ValueError) as error:
        problem = f"not Python: {error}"
        if isinstance(error, SyntaxError) and error.lineno is not None:
            problem = f"line {error.lineno}: {error.msg}"
    except RecursionError:
        problem = "the code is nested too deeply to be read"
    except MemoryError:
        problem = f"the code is too large or too deeply nested to be read within {MEMORY_BYTES >> 20} MB"
    json.dump({"parses": parses, "minified_sha256": digest, "problem": problem}, sys.stdout)


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


if __name__ == "__main__":
    main()
