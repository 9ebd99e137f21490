"""What is wrong, collected. Every check adds to it and none stops the others."""

import collections


class Findings:
    """Problems by rule."""

    def __init__(self, only=None):
        self.only = only
        self.problems = []
        self.checked = collections.Counter()

    def wants(self, rule):
        """Whether this rule is asked for."""
        return self.only is None or rule.startswith(self.only)

    def expect(self, holds, rule, place, problem):
        """Counts a check, and notes the problem if it does not hold."""
        if not self.wants(rule):
            return bool(holds)
        self.checked[rule] += 1
        if not holds:
            self.problems.append(f"[{rule}] {place}: {problem}")
        return bool(holds)

    def report(self):
        """Prints every problem, and how much each rule has checked."""
        for problem in self.problems:
            print(problem)
        for rule, count in sorted(self.checked.items()):
            print(f"rule {rule}: {count} checks")
        print(f"{self.checked.total()} checks, {len(self.problems)} problems")
