#include "synchronizer/attempts/transport_choice.h"

#include <iterator>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/transport/transport_traits.h"

namespace syncopate::synchronizer {
namespace {

using Peers = std::vector<SyncPeer>;

std::string GetName(const SyncPeer& peer) {
  return peer.id.world == 1 ? peer.id.replica_id : absl::StrCat(peer.id.replica_id, " rank ", peer.id.rank);
}

// Whether a transport can be used, and why or why not.
struct Verdict {
  bool usable = false;
  std::string why;
  const char* reason = reason::kNoCommonTransport;
};

Verdict Usable(std::string why) { return {true, std::move(why)}; }
Verdict Unusable(std::string why) { return {false, std::move(why)}; }

Verdict CheckOffers(const std::string& name, const Peers& all) {
  for (const SyncPeer& peer : all) {
    if (!absl::c_linear_search(peer.transports, name)) {
      return Unusable(absl::StrFormat("%s does not offer %s", GetName(peer), name));
    }
  }
  return Usable("");
}

// With `strict`, unknown facts count against the transport; without it, only facts that contradict it do.
Verdict CheckGpus(const Peers& all, bool strict) {
  for (const SyncPeer& peer : all) {
    if (strict && peer.facts.gpu_uuid.empty()) return Unusable(GetName(peer) + " has no GPU");
  }
  return Usable("");
}

Verdict CheckIpc(const Peers& sources, const Peers& receivers, const Peers& all, bool strict) {
  const DeviceFacts& first = all.front().facts;
  bool nvlink = true;
  for (const SyncPeer& peer : all) {
    const bool known = strict || !(peer.facts.host.empty() || first.host.empty());
    if (known && peer.facts.host != first.host) {
      return Unusable(absl::StrFormat("%s and %s are on different hosts", GetName(all.front()), GetName(peer)));
    }
    nvlink = nvlink && peer.facts.nvlink;
  }
  Verdict gpus = CheckGpus(all, strict);
  if (!gpus.usable) return gpus;
  for (const SyncPeer& source : sources) {
    for (const SyncPeer& receiver : receivers) {
      bool reaches = source.facts.gpu_uuid == receiver.facts.gpu_uuid ||
                     absl::c_linear_search(receiver.facts.peer_gpus, source.facts.gpu_uuid);
      if (strict && !reaches) {
        return Unusable(absl::StrFormat("%s has no peer access to the GPU of %s", GetName(receiver), GetName(source)));
      }
    }
  }
  return Usable(nvlink ? "one host, peer access, NVLink" : "one host, peer access");
}

Verdict CheckNccl(const Peers& all, bool strict) {
  Verdict gpus = CheckGpus(all, strict);
  if (!gpus.usable) return gpus;
  std::set<std::string> hosts;
  const SyncPeer* with_version = nullptr;
  for (const SyncPeer& peer : all) {
    const std::string& version = peer.facts.nccl_version;
    hosts.insert(peer.facts.host);
    if (version.empty()) {
      if (strict) return Unusable(GetName(peer) + " has no NCCL");
      continue;
    }
    if (with_version == nullptr) with_version = &peer;
    const std::string& expected = with_version->facts.nccl_version;
    if (version == expected) continue;
    return {false,
            absl::StrFormat("NCCL is %s at %s and %s at %s", expected, GetName(*with_version), version, GetName(peer)),
            reason::kNcclMismatch};
  }
  return Usable(absl::StrFormat("members on %d host%s, NCCL %s everywhere", hosts.size(), hosts.size() == 1 ? "" : "s",
                                with_version == nullptr ? "?" : with_version->facts.nccl_version));
}

Verdict Check(const TransportTraits& transport, const Peers& sources, const Peers& receivers, bool strict) {
  Peers all = sources;
  absl::c_copy(receivers, std::back_inserter(all));
  Verdict offered = CheckOffers(std::string(transport.name), all);
  if (!offered.usable) return offered;
  if (transport.one_process) return Usable("all in one process");
  if (!transport.needs_gpus) return Usable("all members offer it");
  return transport.one_host ? CheckIpc(sources, receivers, all, strict) : CheckNccl(all, strict);
}

// Explains a slower choice: what ruled out the fastest transport that any member offers.
std::string WhyNotFaster(const Peers& sources, const Peers& receivers, std::string_view chosen) {
  for (const TransportTraits& transport : kTransports) {
    if (transport.name == chosen) break;
    auto offers = [&](const SyncPeer& peer) { return absl::c_linear_search(peer.transports, transport.name); };
    if (!absl::c_any_of(sources, offers) && !absl::c_any_of(receivers, offers)) continue;
    return absl::StrFormat("not %s: %s", transport.name, Check(transport, sources, receivers, /*strict=*/true).why);
  }
  return "";
}

absl::StatusOr<TransportChoice> ChooseFastest(const Peers& sources, const Peers& receivers) {
  for (const TransportTraits& transport : kTransports) {
    Verdict verdict = Check(transport, sources, receivers, /*strict=*/true);
    if (!verdict.usable) continue;
    std::string not_faster = WhyNotFaster(sources, receivers, transport.name);
    return TransportChoice{std::string(transport.name),
                           not_faster.empty() ? verdict.why : absl::StrCat(verdict.why, "; ", not_faster)};
  }
  return Error(absl::StatusCode::kFailedPrecondition, reason::kNoCommonTransport,
               absl::StrFormat("there is no transport that all members can use: %s",
                               Check(std::end(kTransports)[-1], sources, receivers, /*strict=*/true).why));
}

}  // namespace

absl::StatusOr<TransportChoice> ChooseTransport(const std::string& requested, const std::vector<SyncPeer>& sources,
                                                const std::vector<SyncPeer>& receivers) {
  if (requested == "auto") return ChooseFastest(sources, receivers);
  const TransportTraits* transport = FindTransport(requested);
  Verdict verdict = transport == nullptr ? Unusable("there is no such transport")
                                         : Check(*transport, sources, receivers, /*strict=*/false);
  if (verdict.usable) return TransportChoice{requested, "the configuration asks for it"};
  return Error(absl::StatusCode::kFailedPrecondition, verdict.reason,
               absl::StrFormat("transport %s cannot be used: %s; set sync.transport to one that all share", requested,
                               verdict.why));
}

}  // namespace syncopate::synchronizer
