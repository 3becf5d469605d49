"""Operations on files of a folder, and what they give: run on a volume and on the sandbox's own disk, to compare both.

Prints a JSON object: the result of each check by its name; an OSError is the name of its errno.
"""
import json

import owners, names, content, uses  # noqa: each adds its checks to the results
from check import results

print(json.dumps(results))
