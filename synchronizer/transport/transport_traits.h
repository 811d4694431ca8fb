#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace syncopate::synchronizer {

// The properties of a transport, for code that chooses, checks or counts transports; such code knows nothing else about
// it. A transport is a `SourceTransport` and a `ReceiverTransport` (transport.h). A new transport needs these two, a
// row here, and its name among the values of the key sync.transport.
struct TransportTraits {
  std::string_view name;
  bool one_process = false;     // both ends are in one process: no configuration can ask for it
  bool one_host = false;        // members share a host and its GPUs
  bool needs_gpus = false;      // both ends have their weights on GPUs
  bool forms_group = false;     // the members of a sync form one communicator, which is lost if any member is lost
  bool receivers_meet = false;  // receivers must know each other: to relay, or to form one communicator
};

// All transports, fastest first: the order in which "auto" prefers them.
inline constexpr TransportTraits kTransports[] = {
    {.name = "inproc", .one_process = true},
    {.name = "ipc", .one_host = true, .needs_gpus = true, .receivers_meet = true},
    {.name = "nccl", .needs_gpus = true, .forms_group = true, .receivers_meet = true},
    {.name = "grpc"},
};

// Returns the row of `name`; null if no transport has that name ("auto").
constexpr const TransportTraits* FindTransport(std::string_view name) {
  for (const TransportTraits& traits : kTransports) {
    if (traits.name == name) return &traits;
  }
  return nullptr;
}

constexpr bool NeedsGpus(std::string_view name) {
  const TransportTraits* traits = FindTransport(name);
  return traits != nullptr && traits->needs_gpus;
}

constexpr bool FormsGroup(std::string_view name) {
  const TransportTraits* traits = FindTransport(name);
  return traits != nullptr && traits->forms_group;
}

// The values that a configuration may have: "auto" first, then the names, fastest first.
inline std::vector<std::string> TransportChoices() {
  std::vector<std::string> names = {"auto"};
  for (const TransportTraits& traits : kTransports) {
    if (!traits.one_process) names.emplace_back(traits.name);
  }
  return names;
}

}  // namespace syncopate::synchronizer
