"""
The benchmark: refold, its peers and the raw floor on one machine and one Postgres, round after round.

    python bench/run.py            everything, some minutes a round
    python bench/run.py --quick    refold against the raw floor, under a minute
"""

from __future__ import annotations

import argparse
import json
import sys

import plan
import report
from cluster import Cluster
from measure import Bench
from venvs import OUT, Installed, install


def main() -> int:
    """Measure, write bench/out, print the table."""
    parser = argparse.ArgumentParser(description="Measure refold, its peers and the raw floor.")
    parser.add_argument("--quick", action="store_true", help="refold against the raw floor alone")
    parser.add_argument("--rounds", type=int, default=3, help="how often everybody is measured")
    options = parser.parse_args()
    installed = Installed() if options.quick else install()
    OUT.mkdir(exist_ok=True)
    with Cluster() as cluster:
        bench = Bench(cluster, installed)
        if options.quick:
            plan.quick(bench)
        else:
            plan.full(bench, options.rounds)
        result = report.as_json(bench, plan.began())
    name = "quick" if options.quick else "latest"
    (OUT / f"{name}.json").write_text(json.dumps(result, indent=1))
    table = report.markdown(result)
    (OUT / f"{name}.md").write_text(table)
    print(table)
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
