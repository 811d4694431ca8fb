#pragma once

// Settings of gRPC for the whole process.
namespace syncopate::rpc {

// The largest HTTP/2 frame that a peer may send, in bytes. gRPC's default, 16 KiB, cuts an answer of that size in two
// parts, each with its own memory and bookkeeping.
inline constexpr int kMaxFrameBytes = 1 << 18;

// Sends gRPC's own log lines (errors, unless GRPC_VERBOSITY asks for more) to the process's log instead of standard
// error. Called by all code that makes a server or a channel; idempotent.
void RouteGrpcLog();

// Keeps gRPC's callback threads until the process ends. gRPC 1.51 stops them when the last channel or server is freed,
// and joins them from the thread that freed it. If that is one of the callback threads (the end of a stream frees its
// channel in a callback), the queue that they poll is freed while they use it. Called by MakeChannel and Server::Start;
// idempotent, thread-safe.
void KeepGrpcThreads();

}  // namespace syncopate::rpc
