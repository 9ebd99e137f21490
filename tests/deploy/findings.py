"""What is wrong, collected. Every check adds to it and none stops the others."""


class Findings:
    """Problems by rule."""

    def __init__(self, only=None):
        self.only = only
        self.problems = []
        self.checked = 0

    def wants(self, rule):
        """Whether this rule is asked for."""
        return self.only is None or rule.startswith(self.only)

    def expect(self, holds, rule, place, problem):
        """Counts a check, and notes the problem if it does not hold."""
        if not self.wants(rule):
            return bool(holds)
        self.checked += 1
        if not holds:
            self.problems.append(f"[{rule}] {place}: {problem}")
        return bool(holds)
