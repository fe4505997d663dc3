"""Server reflection, v1 and v1alpha, so that grpcurl and its like need no `.proto` files.

grpcio-reflection brings v1alpha only. v1 has the same messages under another package
(https://github.com/grpc/grpc-proto, grpc/reflection/v1/reflection.proto), so the same servicer
answers it; its descriptor is made from v1alpha's, in a pool of ours.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

V1ALPHA = "grpc.reflection.v1alpha"
V1 = "grpc.reflection.v1"
SERVICE = "ServerReflection"


def add_reflection(server: grpc.aio.Server, files: Sequence[FileDescriptor]) -> None:
    """Register both versions; they list and describe the services of `files` and themselves."""
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    for file in (*files, reflection_pb2.DESCRIPTOR):
        _add(file, pool, added)
    pool.AddSerializedFile(_v1_file().SerializeToString())
    names = [service.full_name for file in files for service in file.services_by_name.values()]
    names += [f"{V1}.{SERVICE}", f"{V1ALPHA}.{SERVICE}"]
    servicer = ReflectionServicer(names, pool)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler(f"{V1}.{SERVICE}", {"ServerReflectionInfo": method})
    server.add_generic_rpc_handlers((handler,))


def _add(file: FileDescriptor, pool: descriptor_pool.DescriptorPool, added: set[str]) -> None:
    """Copy a file into the pool, after all it imports."""
    if file.name in added:
        return
    added.add(file.name)
    for imported in file.dependencies:
        _add(imported, pool, added)
    pool.AddSerializedFile(file.serialized_pb)


def _v1_file() -> descriptor_pb2.FileDescriptorProto:
    """Return v1's descriptor: v1alpha's with the package renamed wherever it is named."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = V1
    for message in file.message_type:
        for field in message.field:
            if field.HasField("type_name"):
                field.type_name = field.type_name.replace(f".{V1ALPHA}.", f".{V1}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{V1ALPHA}.", f".{V1}.")
            method.output_type = method.output_type.replace(f".{V1ALPHA}.", f".{V1}.")
    return file
