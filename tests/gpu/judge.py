"""What is wrong with the rows of a section, in words. Only what has to be right is judged, never a speed.

A comparison that was not made is wrong too: every kernel has to be compared, every check counted, one loss curve at least drawn.
"""

import math

# Distance at which a row or a column of a result is wrong, whatever the distance of the whole: a line of other numbers has about 1.
LINE_TOLERANCE = 0.5
# Share by which a step's loss may lie from the reference path's.
CURVE_TOLERANCE = 2e-3


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def curve_distance(row):
    """Largest relative distance of the loss from the reference path's, over all steps; None where it cannot be told."""
    ours, reference = row.get("curve"), row.get("reference_curve")
    if not ours or not reference or len(ours) != len(reference):
        return None
    if not all(map(is_number, ours + reference)) or any(loss == 0 for loss in reference):
        return None
    return max(abs(loss - wanted) / abs(wanted) for loss, wanted in zip(ours, reference))


def problem(row):
    """Why this row is a failed comparison; None when it is none."""
    name = row.get("name", "a row without a name")
    if "skipped" in row:
        return None
    if "failed" in row:
        return f"{name}: {row['failed']}"
    if "tolerance" in row:
        error, tolerance = row.get("error"), row["tolerance"]
        if not is_number(error) or not is_number(tolerance):
            return f"{name}: its error is not a number"
        if error > tolerance:
            return f"{name}: its error {error:.1e} is over {tolerance:.0e}"
    for line in ("row", "column"):
        if f"worst_{line}" in row:
            error = row.get(f"worst_{line}_error")
            if not is_number(error) or error > LINE_TOLERANCE:
                far = f"{error:.1e} from the reference" if is_number(error) else "not a number"
                return f"{name}: {line} {row[f'worst_{line}']} is {far}"
    if "errors" in row and row["errors"] != 0:
        return f"{name}: {row['errors'] if row['errors'] is not None else 'it did not come to the end; unknown'} errors"
    if "curve" in row:
        distance = curve_distance(row)
        if distance is None:
            return f"{name}: its loss curve cannot be held against a reference"
        if distance > CURVE_TOLERANCE:
            return f"{name}: its loss is {distance:.2%} from the reference path, over {CURVE_TOLERANCE:.1%}"
    return None


# What every measured row of a section has to be held against.
COMPARED_BY = {"kernels": "tolerance", "sanitizer": "errors", "nccl": "errors"}
# The same of a part, where a section has two.
COMPARED_BY_PART = {("whole", "transformers"): "tolerance"}


def problems(section, rows, by=""):
    """Everything that is wrong with the rows of a part that came to its end."""
    measured = [row for row in rows if "skipped" not in row and "failed" not in row]
    found = [words for words in map(problem, rows) if words]
    wanted = COMPARED_BY.get(section) or COMPARED_BY_PART.get((section, by))
    found += [f"{row.get('name')}: it was compared with nothing" for row in measured if wanted and wanted not in row]
    if section in ("steps", "ladder") and measured and not any("curve" in row for row in measured):
        found.append("no loss was held against the reference path")
    return found
