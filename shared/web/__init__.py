"""The live page: a control service in a browser, by the calls and the checks that its commands use."""

from shared.web.serving import serving_page

__all__ = ["serving_page"]
