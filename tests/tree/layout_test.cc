#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/tree/include_rules.h"

namespace syncopate::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

const char* const kSourceFolders[] = {"base",    "cuda",      "ranks",    "text",  "model", "synchronizer",
                                      "trainer", "rollouter", "services", "tools", "tests", "bench"};

bool IsSource(const std::filesystem::path& path) {
  const std::string kind = path.extension().string();
  return kind == ".h" || kind == ".cc" || kind == ".cu" || kind == ".cuh";
}

struct Source {
  std::string path;  // relative to the root
  std::vector<std::string> includes;
  std::string text;
};

std::vector<Source> ReadSources() {
  const std::filesystem::path root(SYNCOPATE_SOURCE_DIR);
  std::vector<Source> sources;
  for (const char* folder : kSourceFolders) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      std::vector<std::string> includes = ListIncludes(text);
      sources.push_back({entry.path().lexically_relative(root).generic_string(), std::move(includes), std::move(text)});
    }
  }
  return sources;
}

std::string GetFolder(const std::string& path) { return std::filesystem::path(path).parent_path().generic_string(); }

TEST(LayoutTest, NoFileIncludesWhatItsFolderMayNot) {
  const std::vector<Source> sources = ReadSources();
  std::vector<std::string> breaches;
  for (const Source& source : sources) {
    for (std::string& breach : Breaches(source.path, source.includes)) breaches.push_back(std::move(breach));
  }
  // The test would find nothing if the list of sources were empty.
  EXPECT_GT(sources.size(), 50u) << "the tree was not found";
  EXPECT_THAT(breaches, IsEmpty());
}

TEST(LayoutTest, NoFoldersOfTheProductIncludeEachOtherInACircle) {
  FolderIncludes folders;
  for (const Source& source : ReadSources()) {
    if (source.path.starts_with("tests/")) continue;
    const std::string from = GetFolder(source.path);
    for (const std::string& include : source.includes) {
      const std::string to = GetFolder(include);
      if (to != from && !to.empty()) folders[from].insert(to);
    }
  }
  EXPECT_GT(folders.size(), 20u) << "the tree was not found";
  EXPECT_THAT(InCircles(folders), IsEmpty());
}

// The folders of tests/unit that contain source files, relative to tests/unit.
std::vector<std::string> UnitTestFolders() {
  std::vector<std::string> folders;
  for (const Source& source : ReadSources()) {
    const std::string folder = GetFolder(source.path);
    if (!folder.starts_with("tests/unit/")) continue;
    const std::string mirrored = folder.substr(std::string("tests/unit/").size());
    if (std::find(folders.begin(), folders.end(), mirrored) == folders.end()) folders.push_back(mirrored);
  }
  return folders;
}

TEST(LayoutTest, EachFolderOfTheUnitTestsHasTheNameOfAFolderOfTheProduct) {
  const std::filesystem::path root(SYNCOPATE_SOURCE_DIR);
  const std::vector<std::string> folders = UnitTestFolders();
  EXPECT_GT(folders.size(), 20u) << "the tree was not found";
  std::vector<std::string> strangers;
  for (const std::string& folder : folders) {
    if (folder == "support") continue;  // these are tests of tests/support, which is no part of the product
    if (!std::filesystem::is_directory(root / folder)) strangers.push_back(folder);
  }
  EXPECT_THAT(strangers, IsEmpty());
}

// True if the text has a comment besides those that name the end of a namespace.
bool HasComment(const std::string& text) {
  for (size_t at = 0; (at = text.find("//", at)) != std::string::npos; at += 2) {
    if (text.compare(at, 12, "// namespace") != 0) return true;
  }
  return false;
}

// The first line of a long file must say why it is one file. A short header must have a comment that says what it is.
TEST(LayoutTest, LongFilesBeginWithAReasonAndNoShortHeaderIsWithoutAComment) {
  constexpr ptrdiff_t kLong = 700, kShort = 30;
  std::vector<std::string> strangers;
  for (const Source& source : ReadSources()) {
    const ptrdiff_t lines = std::count(source.text.begin(), source.text.end(), '\n');
    const bool is_header = source.path.ends_with(".h") || source.path.ends_with(".cuh");
    const bool has_reason = lines <= kLong || source.text.starts_with("//");
    const bool has_comment = !is_header || lines >= kShort || HasComment(source.text);
    if (!has_reason || !has_comment) strangers.push_back(source.path);
  }
  EXPECT_THAT(strangers, IsEmpty());
}

// A unit test lies in the folder that it tests, so it includes at least one header of that folder, or of its own
// folder.
TEST(LayoutTest, EachUnitTestIncludesAHeaderOfTheFolderThatItMirrors) {
  std::vector<std::string> strangers;
  int64_t tests = 0;
  for (const Source& source : ReadSources()) {
    if (!source.path.starts_with("tests/unit/") || !source.path.ends_with("_test.cc")) continue;
    // Golden_test.cc reads and runs its cases through tests/support.
    if (source.path.ends_with("/golden_test.cc")) continue;
    ++tests;
    const std::string folder = GetFolder(source.path);
    const std::string mirrored = folder.substr(std::string("tests/unit/").size());
    const bool belongs = std::any_of(source.includes.begin(), source.includes.end(), [&](const std::string& include) {
      return GetFolder(include) == mirrored || GetFolder(include) == folder ||
             GetFolder(include) == "tests/" + mirrored;
    });
    if (!belongs) strangers.push_back(source.path);
  }
  EXPECT_GT(tests, 100) << "the tree was not found";
  EXPECT_THAT(strangers, IsEmpty());
}

TEST(IncludeRulesTest, FindsCirclesOfFolders) {
  EXPECT_THAT(InCircles({{"a", {"b", "c"}}, {"b", {"c"}}, {"c", {"d"}}}), IsEmpty());
  EXPECT_THAT(InCircles({{"a", {"b"}}, {"b", {"c", "d"}}, {"c", {"b"}}, {"e", {"d"}}}), ElementsAre("a", "b", "c"));
}

TEST(IncludeRulesTest, FindsIncludesAndNothingElse) {
  EXPECT_THAT(
      ListIncludes("#include \"base/log.h\"\n  # include <vector>  // why\n// #include \"x.h\"\nint include;\n"),
      ElementsAre("base/log.h", "vector"));
}

struct Case {
  const char* path;
  std::vector<std::string> includes;
};

TEST(IncludeRulesTest, RefusesWhatMayNotBe) {
  for (const Case& bad : {Case{"trainer/step.cc", {"grpcpp/grpcpp.h"}},
                          Case{"tests/unit/base/log_test.cc", {"syncopate/v1/trainer.grpc.pb.h"}},
                          Case{"trainer/data/ledger.h", {"syncopate/v1/trainer.pb.h"}},
                          Case{"rollouter/engine/engine.h", {"google/protobuf/message.h"}},
                          Case{"synchronizer/nccl/device.cc", {"nccl.h"}},
                          Case{"trainer/actor/actor.cc", {"nccl.h"}},
                          Case{"trainer/actor/actor.h", {"trainer/step/options.h"}},
                          Case{"trainer/memory/cache_rule.h", {"trainer/step/options.h"}},
                          Case{"trainer/step/train_step.cc", {"trainer/loop/step_loop.h"}},
                          Case{"synchronizer/nccl/comm.cc", {"torch/torch.h"}},
                          Case{"base/manifest.cc", {"ATen/ATen.h"}},
                          Case{"ranks/nccl/nccl_ranks.cc", {"ATen/ATen.h"}},
                          Case{"ranks/meeting.cc", {"cuda_runtime.h"}},
                          Case{"cuda/stream.cc", {"ranks/communicator.h"}},
                          Case{"synchronizer/plan/plan.cc", {"ranks/communicator.h"}},
                          Case{"base/digest.cc", {"cuda_runtime.h"}},
                          Case{"rollouter/engine/engine.cc", {"trainer/loss/loss.h"}},
                          Case{"trainer/step/step.cc", {"rollouter/engine/engine.h"}},
                          Case{"base/log.cc", {"model/transformer.h"}},
                          Case{"text/tokenizer/tokenizer.cc", {"model/model_folder.h"}},
                          Case{"model/transformer.cc", {"synchronizer/plan/plan.h"}},
                          Case{"synchronizer/plan/plan.cc", {"trainer/step/step.h"}},
                          Case{"rollouter/engine/engine.cc", {"services/rpc/server.h"}},
                          Case{"services/rpc/server.cc", {"tests/support/process.h"}},
                          Case{"tools/twin/main.cc", {"ATen/ATen.h", "grpcpp/grpcpp.h"}},
                          Case{"cuda/stream.cc", {"synchronizer/plan/plan.h"}},
                          Case{"services/rpc/server.cc", {"tools/ctl/verbs.h"}},
                          Case{"services/rpc/server.cc", {"services/daemon/daemon.h"}},
                          Case{"services/wire/codec.cc", {"services/member/member_client.h"}},
                          Case{"services/trainer/main.cc", {"services/rollouter/work_client.h"}},
                          Case{"bench/sync/case.cc", {"tools/run/local_run.h"}},
                          Case{"synchronizer/plan/plan.cc", {"synchronizer/transport/bucket.h"}},
                          Case{"synchronizer/attempts/attempt.cc", {"synchronizer/loop/control_plane.h"}},
                          Case{"rollouter/engine/engine.cc", {"rollouter/cuda/cuda_backend.h"}},
                          Case{"rollouter/cuda/decode/decode_model.cc", {"rollouter/cuda/cuda_backend.h"}},
                          Case{"rollouter/engine/engine.cc", {"rollouter/reward/scorer.h"}},
                          Case{"model/transformer.cc", {"model/cuda/matmul.h"}},
                          Case{"ranks/meeting.cc", {"ranks/nccl/nccl_ranks.h"}},
                          Case{"tools/records/run_events.cc", {"tools/run/local_run.h"}},
                          Case{"tools/ctl/verbs.cc", {"tools/cli/commands.h"}},
                          Case{"model/transformer.cc", {"ATen/ATen.h", "spdlog/spdlog.h"}}}) {
    EXPECT_THAT(Breaches(bad.path, bad.includes), Not(IsEmpty())) << bad.path << " with " << bad.includes[0];
  }
}

TEST(IncludeRulesTest, AllowsWhatMayBe) {
  for (const Case& good :
       {Case{"services/rpc/server.h", {"grpcpp/grpcpp.h", "google/protobuf/message.h"}},
        Case{"tests/component/rpc/status_test.cc", {"grpcpp/grpcpp.h", "services/rpc/status.h"}},
        Case{"cuda/nccl/nccl_comm.cc", {"nccl.h", "cuda_runtime.h", "base/status.h"}},
        Case{"synchronizer/nccl/device.cc", {"cuda_runtime.h", "cuda/nccl/nccl_comm.h"}},
        Case{"ranks/nccl/nccl_ranks.cc", {"cuda_runtime.h", "cuda/nccl/nccl_comm.h", "ranks/communicator.h"}},
        Case{"model/cuda/cuda_ops.cc", {"ranks/communicator.h"}},
        Case{"trainer/step/step.cc", {"ATen/ATen.h", "model/transformer.h", "synchronizer/plan/plan.h"}},
        Case{"rollouter/engine/engine.cc", {"ATen/ATen.h", "model/transformer.h", "base/log.h"}},
        Case{"base/log.cc", {"spdlog/spdlog.h", "base/log.h"}},
        Case{"synchronizer/cuda/cuda_send_arena.cc", {"cuda_runtime.h", "cuda/stream.h"}},
        Case{"tools/ctl/verbs.cc", {"grpcpp/grpcpp.h", "services/rpc/channel.h", "bench/bench_command.h"}},
        Case{"synchronizer/plan/plan.cc", {"synchronizer/messages.h", "synchronizer/plan/piece.h"}},
        Case{"rollouter/cuda/cuda_backend.cc", {"rollouter/cuda/decode/decode_model.h", "rollouter/engine/engine.h"}},
        Case{"services/trainer/main.cc", {"services/daemon/daemon.h", "services/auth/role.h"}},
        Case{"services/trainer/main.cc", {"trainer/step/step.h", "rollouter/engine/engine.h"}}}) {
    EXPECT_THAT(Breaches(good.path, good.includes), IsEmpty()) << good.path;
  }
}

}  // namespace
}  // namespace syncopate::testing
