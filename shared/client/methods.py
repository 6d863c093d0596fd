"""The methods that a worker serves, by the paths that gRPC calls them by."""

SERVICE = "isthmus.v1.TrainerService"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def method_path(name: str) -> str:
    """The path of a method of the trainer's service."""
    return f"/{SERVICE}/{name}"
