"""Who a caller is, by certificate or token, and what that allows."""

from shared.transport.auth.callers import Authenticator
from shared.transport.auth.tokens import Scope


def test_a_certificate_alone_makes_nobody_an_operator():
    class Context:
        def auth_context(self):
            return {"x509_common_name": [b"pi-7"]}

    who = Authenticator(None, certificates=True).identify(Context())
    assert (who.subject, who.scopes) == ("pi-7", {Scope.TRAIN, Scope.CONTROL, Scope.READ})
