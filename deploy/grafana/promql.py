"""The questions that our dashboards ask, said once for both sides."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Side:
    """The series of one side, as the dashboard's variables choose them."""

    matchers: str

    def of(self, metric: str, *labels: str) -> str:
        """The series themselves; labels: further matchers."""
        return f"{metric}{{{', '.join([self.matchers, *labels])}}}"

    def rate(self, counter: str, *labels: str) -> str:
        """Growth a second."""
        return f"rate({self.of(counter, *labels)}[$__rate_interval])"

    def mean(self, histogram: str, *labels: str) -> str:
        """Ask for the average of the observations."""
        return f"{self.rate(f'{histogram}_sum', *labels)} / {self.rate(f'{histogram}_count', *labels)}"

    def quantile(self, share: float, histogram: str, *labels: str) -> str:
        """Ask for the value that this share of the observations did not exceed."""
        return f"histogram_quantile({share}, {self.rate(f'{histogram}_bucket', *labels)})"

    def spared(self, direction: str) -> str:
        """Share of the bytes of tensors that codecs kept off the link."""
        label = f'direction="{direction}"'
        saved, sent = self.rate("isthmus_saved_bytes_total", label), self.rate("isthmus_payload_bytes_total", label)
        return f"{saved} / ({saved} + {sent})"

    def changed(self, gauge: str) -> str:
        """Ask for the moments at which a setting took another value."""
        return f"changes({self.of(gauge)}[$__rate_interval]) > 0"


EDGE = Side('job="isthmus-edge", instance=~"$instance"')
TRAINER = Side('job="isthmus-trainer", instance=~"$instance"')
SESSION = Side('job="isthmus-trainer", instance=~"$instance", session=~"$session"')
