#include "tests/tree/include_rules.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string_view>

namespace syncopate::testing {
namespace {

using Names = std::vector<std::string_view>;

bool StartsWithAny(std::string_view text, const Names& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [text](std::string_view prefix) { return text.starts_with(prefix); });
}

bool IsGrpc(std::string_view include) {
  return StartsWithAny(include, {"grpc/", "grpcpp/", "grpc++/"}) || include.ends_with(".grpc.pb.h");
}
bool IsProto(std::string_view include) { return include.ends_with(".pb.h") || include.starts_with("google/protobuf/"); }
bool IsTorch(std::string_view include) { return StartsWithAny(include, {"torch/", "ATen/", "c10/", "caffe2/"}); }
bool IsNccl(std::string_view include) { return include == "nccl.h"; }
// Headers of the vendor; cuda/ is also a folder of this tree, whose headers are not meant.
bool IsCuda(std::string_view include) {
  return StartsWithAny(include, {"cuda", "cudnn", "cublas"}) && !include.starts_with("cuda/");
}
bool IsSpdlog(std::string_view include) { return include.starts_with("spdlog/"); }

// The includes that files below one of `folders` (all files, if there are none) may not have, unless they are below one
// of `except`.
struct Rule {
  Names folders;
  Names except;
  bool headers_only;
  bool (*matches)(std::string_view include);
  std::string_view why;
};

const std::vector<Rule>& Rules() {
  static const auto* const rules = new std::vector<Rule>{
      {{},
       {"services/", "tools/", "bench/", "tests/component/", "tests/e2e/", "tests/fault/", "tests/support/"},
       false,
       IsGrpc,
       "gRPC belongs to services/, tools/ and bench/"},
      {{},
       {"services/", "tools/", "bench/", "tests/"},
       true,
       IsProto,
       "core headers have no wire types; services/wire turns them"},
      {{}, {"cuda/nccl/", "tests/gpu/", "bench/ceiling/"}, false, IsNccl, "nccl.h belongs to cuda/nccl/"},
      {{"base/", "cuda/", "ranks/", "text/", "synchronizer/"},
       {},
       false,
       IsTorch,
       "base/, cuda/, ranks/, text/ and synchronizer/ build without torch"},
      {{"base/", "ranks/", "synchronizer/"},
       {"ranks/nccl/", "synchronizer/cuda/", "synchronizer/nccl/", "synchronizer/ipc/"},
       false,
       IsCuda,
       "CUDA belongs to NCCL's ranks and the GPU transports here"},
  };
  return *rules;
}

const Names kBelowDaemons = {"services/config/", "services/auth/",   "services/rpc/",       "services/wire/",
                             "services/member/", "services/daemon/", "services/telemetry/", "services/endpoint/"};

// The folders of the tree that files of a folder may include, beside the folder itself.
struct Arrows {
  std::string_view folder;
  Names to;
};

const std::vector<Arrows>& AllArrows() {
  static const auto* const arrows = new std::vector<Arrows>{
      {"base/", {}},
      {"cuda/", {"base/"}},
      {"ranks/", {"base/", "cuda/"}},
      {"text/", {"base/"}},
      {"model/", {"base/", "cuda/", "ranks/"}},
      {"synchronizer/", {"base/", "cuda/"}},
      {"trainer/", {"base/", "cuda/", "ranks/", "text/", "model/", "synchronizer/"}},
      {"rollouter/", {"base/", "cuda/", "ranks/", "text/", "model/", "synchronizer/"}},
      {"services/", {"base/", "cuda/", "ranks/", "text/", "model/", "synchronizer/", "trainer/", "rollouter/"}},
      {"bench/",
       {"base/", "cuda/", "ranks/", "text/", "model/", "synchronizer/", "trainer/", "rollouter/", "services/",
        "tests/support/"}},
      {"tools/",
       {"base/", "cuda/", "ranks/", "text/", "model/", "synchronizer/", "trainer/", "rollouter/", "services/",
        "bench/"}},
  };
  return *arrows;
}

// The folders of services/ that each folder may include, beside itself: the parts of a daemon are below, the daemons on
// top.
const std::vector<Arrows>& ServiceArrows() {
  static const auto* const arrows = new std::vector<Arrows>{
      {"services/config/", {}},
      {"services/auth/", {"services/config/"}},
      {"services/rpc/", {"services/config/", "services/auth/"}},
      {"services/wire/", {"services/rpc/"}},
      {"services/telemetry/", {"services/auth/"}},
      {"services/member/", {"services/auth/", "services/rpc/", "services/wire/"}},
      {"services/daemon/",
       {"services/config/", "services/auth/", "services/rpc/", "services/wire/", "services/telemetry/"}},
      {"services/http/", {}},
      {"services/endpoint/", {"services/http/"}},
      {"services/gateway/", {"services/endpoint/", "services/http/"}},
      {"services/trainer/", kBelowDaemons},
      {"services/rollouter/", kBelowDaemons},
      {"services/synchronizer/", kBelowDaemons},
  };
  return *arrows;
}

// Arrows inside trainer/: the parts of a step are below, the run's loop is on top.
const std::vector<Arrows>& TrainerArrows() {
  static const auto* const arrows = new std::vector<Arrows>{
      {"trainer/loss/", {}},
      {"trainer/memory/", {}},
      {"trainer/actor/", {"trainer/memory/"}},
      {"trainer/step/", {"trainer/loss/", "trainer/memory/", "trainer/actor/"}},
      {"trainer/ranks/", {"trainer/step/", "trainer/staging/"}},
      {"trainer/staging/", {"trainer/step/"}},
      {"trainer/cuda/", {"trainer/memory/", "trainer/step/", "trainer/staging/"}},
      {"trainer/checkpoint/", {"trainer/actor/", "trainer/step/"}},
      {"trainer/data/", {"trainer/loss/"}},
      {"trainer/turns/", {}},
      {"trainer/loop/",
       {"trainer/memory/", "trainer/step/", "trainer/staging/", "trainer/checkpoint/", "trainer/data/",
        "trainer/turns/"}},
      {"trainer/record/", {"trainer/loss/", "trainer/step/", "trainer/data/", "trainer/loop/"}},
  };
  return *arrows;
}

// Arrows inside synchronizer/: data and transports are below, the state machines that command them on top. Every folder
// may include files that lie in synchronizer/ itself.
const std::vector<Arrows>& SynchronizerArrows() {
  static const auto* const arrows = new std::vector<Arrows>{
      {"synchronizer/plan/", {}},
      {"synchronizer/transport/", {"synchronizer/plan/"}},
      {"synchronizer/cuda/", {"synchronizer/plan/", "synchronizer/transport/"}},
      {"synchronizer/ipc/", {"synchronizer/plan/", "synchronizer/transport/", "synchronizer/cuda/"}},
      {"synchronizer/nccl/", {"synchronizer/plan/", "synchronizer/transport/", "synchronizer/cuda/"}},
      {"synchronizer/member/", {"synchronizer/transport/"}},
      {"synchronizer/members/", {}},
      {"synchronizer/versions/", {}},
      {"synchronizer/attempts/", {"synchronizer/transport/"}},
      {"synchronizer/loop/",
       {"synchronizer/transport/", "synchronizer/members/", "synchronizer/versions/", "synchronizer/attempts/"}},
  };
  return *arrows;
}

// Arrows inside rollouter/: the engine does not know rewards, or the trajectories that its answers become.
const std::vector<Arrows>& RollouterArrows() {
  static const auto* const arrows = new std::vector<Arrows>{
      {"rollouter/engine/", {}},
      {"rollouter/reward/", {}},
      {"rollouter/environment/", {"rollouter/reward/"}},
      {"rollouter/trajectory/", {"rollouter/engine/", "rollouter/environment/"}},
      {"rollouter/cuda/decode/", {}},
      {"rollouter/cuda/", {"rollouter/engine/", "rollouter/cuda/decode/"}},
  };
  return *arrows;
}

// Arrows inside model/ and ranks/: code for every device includes no GPU code.
const std::vector<Arrows>& DeviceArrows() {
  static const auto* const arrows = new std::vector<Arrows>{
      {"model/cuda/", {"model/"}},
      {"model/", {}},
      {"ranks/nccl/", {"ranks/"}},
      {"ranks/", {}},
  };
  return *arrows;
}

// Arrows inside tools/: the command line is on top, records are below.
const std::vector<Arrows>& ToolArrows() {
  static const auto* const arrows = new std::vector<Arrows>{
      {"tools/records/", {}},
      {"tools/report/", {"tools/records/"}},
      {"tools/ctl/", {"tools/records/"}},
      {"tools/run/", {"tools/records/", "tools/report/"}},
      {"tools/doctor/", {"tools/run/"}},
      {"tools/api/", {}},
      {"tools/data/", {}},
      {"tools/generate/", {}},
      {"tools/serve/", {"tools/generate/"}},
      {"tools/gateway/", {"tools/ctl/"}},
      {"tools/k8s/", {}},
      {"tools/twin/", {}},
      {"tools/cli/",
       {"tools/records/", "tools/report/", "tools/ctl/", "tools/run/", "tools/doctor/", "tools/data/",
        "tools/generate/", "tools/serve/", "tools/gateway/", "tools/k8s/"}},
  };
  return *arrows;
}

// A part of the tree whose folders have arrows of their own; `inside` lists those folders.
struct Part {
  const std::vector<Arrows>& arrows;
  Names inside;
};

std::vector<Part> Parts() {
  // Files that lie in synchronizer/ itself are in none of its folders.
  Names synchronizer;
  for (const Arrows& one : SynchronizerArrows()) synchronizer.push_back(one.folder);
  return {{ServiceArrows(), {"services/"}},
          {TrainerArrows(), {"trainer/"}},
          {SynchronizerArrows(), synchronizer},
          {RollouterArrows(), {"rollouter/"}},
          {DeviceArrows(), {"model/cuda/", "ranks/nccl/"}},
          {ToolArrows(), {"tools/"}}};
}

const Names kFolders = {"base/",    "cuda/",      "ranks/",    "text/",  "model/", "synchronizer/",
                        "trainer/", "rollouter/", "services/", "tools/", "tests/", "bench/"};

bool Applies(const Rule& rule, const std::string& path) {
  if (rule.headers_only && !path.ends_with(".h")) return false;
  if (StartsWithAny(path, rule.except)) return false;
  return rule.folders.empty() || StartsWithAny(path, rule.folders);
}

// Whether `path` includes one of `folders` that its arrows do not name.
bool PointsBack(const std::string& path, const std::string& include, const std::vector<Arrows>& all,
                const Names& folders) {
  // The deepest folder that contains the file counts: a folder inside a folder has arrows of its own.
  const Arrows* deepest = nullptr;
  for (const Arrows& arrows : all) {
    if (!path.starts_with(arrows.folder)) continue;
    if (deepest == nullptr || arrows.folder.size() > deepest->folder.size()) deepest = &arrows;
  }
  if (deepest == nullptr || !StartsWithAny(include, folders)) return false;
  // Files that lie in a folder itself do not include files of folders inside it, unless its arrows name them.
  const bool is_deeper = std::any_of(all.begin(), all.end(), [&](const Arrows& arrows) {
    return arrows.folder.size() > deepest->folder.size() && arrows.folder.starts_with(deepest->folder) &&
           include.starts_with(arrows.folder);
  });
  if (include.starts_with(deepest->folder) && !is_deeper) return false;
  return !StartsWithAny(include, deepest->to);
}

std::string Sentence(const std::string& path, const std::string& include, std::string_view why) {
  return path + " includes " + include + ": " + std::string(why);
}

std::string_view SkipBlanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text;
}

}  // namespace

std::vector<std::string> ListIncludes(const std::string& text) {
  constexpr std::string_view kDirective = "include";
  std::vector<std::string> includes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::string_view rest = SkipBlanks(line);
    if (!rest.starts_with('#')) continue;
    rest = SkipBlanks(rest.substr(1));
    if (!rest.starts_with(kDirective)) continue;
    rest = SkipBlanks(rest.substr(kDirective.size()));
    if (rest.empty() || (rest[0] != '"' && rest[0] != '<')) continue;
    size_t end = rest.find(rest[0] == '"' ? '"' : '>', 1);
    if (end != std::string_view::npos) includes.emplace_back(rest.substr(1, end - 1));
  }
  return includes;
}

std::vector<std::string> Breaches(const std::string& path, const std::vector<std::string>& includes) {
  const std::vector<Part> parts = Parts();
  std::vector<std::string> breaches;
  for (const std::string& include : includes) {
    for (const Rule& rule : Rules()) {
      if (Applies(rule, path) && rule.matches(include)) breaches.push_back(Sentence(path, include, rule.why));
    }
    const bool breaks_a_part = std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
      return PointsBack(path, include, part.arrows, part.inside);
    });
    if (breaks_a_part || PointsBack(path, include, AllArrows(), kFolders)) {
      breaches.push_back(Sentence(path, include, "that arrow points the wrong way"));
    }
  }
  auto has = [&includes](bool (*kind)(std::string_view)) {
    return std::any_of(includes.begin(), includes.end(), [kind](const std::string& include) { return kind(include); });
  };
  if (has(IsTorch) && (has(IsGrpc) || has(IsProto) || has(IsSpdlog))) {
    breaches.push_back(path + " includes torch and gRPC, protobuf or spdlog: their headers shadow each other");
  }
  return breaches;
}

std::vector<std::string> InCircles(FolderIncludes includes) {
  // A folder that includes no other is in no circle; nor is a folder that includes only such folders.
  bool any = true;
  while (any) {
    any = false;
    for (auto folder = includes.begin(); folder != includes.end();) {
      const bool leads_on = std::any_of(folder->second.begin(), folder->second.end(),
                                        [&](const std::string& to) { return includes.count(to) > 0; });
      any = any || !leads_on;
      folder = leads_on ? std::next(folder) : includes.erase(folder);
    }
  }
  std::vector<std::string> left;
  for (const auto& [folder, to] : includes) left.push_back(folder);
  return left;
}

}  // namespace syncopate::testing
