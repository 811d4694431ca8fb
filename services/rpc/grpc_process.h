#pragma once

// What this process asks of gRPC as a whole.
namespace syncopate::rpc {

// The largest HTTP/2 frame that a peer may send, bytes. gRPC's own, 16 KiB, cuts an answer of that size in two, each
// part with its own memory and bookkeeping.
inline constexpr int kMaxFrameBytes = 1 << 18;

// Puts what gRPC itself has to say (errors, unless GRPC_VERBOSITY asks for more) into the process's log instead of
// straight to standard error. Called by whatever makes a server or a channel; idempotent.
void RouteGrpcLog();

// Keeps gRPC's callback threads until the process ends. gRPC 1.51 stops them when the last channel or server is freed,
// and joins them from whatever thread freed it: if that is one of themselves (the end of a stream frees its channel in
// a callback) the queue that they poll is freed under them. Called by MakeChannel and Server::Start; idempotent,
// thread-safe.
void KeepGrpcThreads();

}  // namespace syncopate::rpc
