# Runs one job of `sparktune compare --run-code`, inside the sandbox. The job comes as JSON on standard input.
# What the code prints is thrown away. The last line is the job's nonce, and then the result as JSON.
import contextlib
import io
import json
import sys


def run(code, scope=None):
    scope = {"__name__": "answer"} if scope is None else scope
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(code, "answer.py", "exec"), scope)
    return scope


def error(reason):
    text = f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__
    return text[:300]


def python(job):
    """The answer's code must pass every test."""
    tests = job["tests"]
    try:
        scope = run(job["code"])
    except BaseException as reason:
        return 0, len(tests), error(reason)
    passed, message = 0, None
    for test in tests:
        try:
            run(test, dict(scope))
            passed += 1
        except BaseException as reason:
            message = message or f"{test[:100]}: {error(reason)}"
    return passed, len(tests), message


def tests(job):
    """The answer's tests must pass with the correct code and fail with each wrong one."""

    def fails(code):
        try:
            scope = run(code + "\n" + job["code"])
            for name in [name for name in scope if name.startswith("test") and callable(scope[name])]:
                run(f"{name}()", scope)
        except BaseException as reason:
            return error(reason)
        return None

    wrong = job["wrong"]
    message = fails(job["correct"])
    if message is not None:
        # Tests that fail with correct code find nothing.
        return 0, len(wrong) + 1, f"the tests refuse correct code: {message}"
    found = sum(fails(code) is not None for code in wrong)
    message = None if found == len(wrong) else f"the tests pass with {len(wrong) - found} wrong versions"
    return found + 1, len(wrong) + 1, message


def comparable(row):
    """Rows that are equal come together, as 3 and 3.0 are equal."""
    return repr([float(value) if isinstance(value, (int, float)) else value for value in row])


def sql(job):
    """The answer's query must give the rows."""
    import sqlite3

    database = sqlite3.connect(":memory:")
    database.executescript(job["setup"])
    try:
        rows = [list(row) for row in database.execute(job["code"].strip().rstrip(";")).fetchmany(1000)]
    except BaseException as reason:
        return 0, 1, error(reason)
    wanted = job["rows"]
    same = rows == wanted if job["ordered"] else sorted(rows, key=comparable) == sorted(wanted, key=comparable)
    return int(same), 1, None if same else f"it gives {json.dumps(rows)[:200]}"


def main():
    job = json.loads(sys.stdin.readline())
    nonce = job.pop("nonce")
    passed, total, message = {"python": python, "tests": tests, "sql": sql}[job["kind"]](job)
    print(f"\n{nonce}" + json.dumps({"passed": passed, "total": total, "message": message}), flush=True)


main()
