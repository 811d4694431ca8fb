#pragma once

namespace syncopate::rpc {

// Keeps gRPC's callback threads until the process ends. gRPC 1.51 stops them when the last channel or server is freed,
// and joins them from whatever thread freed it: if that is one of themselves (the end of a stream frees its channel in
// a callback) the queue that they poll is freed under them. Called by MakeChannel and Server::Start; idempotent,
// thread-safe.
void KeepGrpcThreads();

}  // namespace syncopate::rpc
