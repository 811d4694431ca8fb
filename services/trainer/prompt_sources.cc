#include "services/trainer/prompt_sources.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "model/hf_config.h"
#include "services/config/data_files.h"
#include "services/config/text_options.h"
#include "services/config/trainer_options.h"
#include "trainer/data/tasks.h"
#include "trainer/data/text_source.h"

namespace syncopate::trainerd {
namespace {

constexpr int64_t kMaxRecordBytes = 1 << 20;
constexpr char kStateFolder[] = "state/trainer";

using OpenFiles = std::map<std::string, std::shared_ptr<const trainer::JsonlFile>>;

absl::StatusOr<PromptSources> OpenTask(const v1::RunConfig& config) {
  PromptSources sources;
  trainer::TaskOptions evaluation = config::MakeTaskOptions(config);
  // Evaluation prompts differ from those of training, and do not depend on the run's seed, so that figures of runs can
  // be compared.
  evaluation.seed = static_cast<uint64_t>(config.eval().seed());
  SYNCOPATE_ASSIGN_OR_RETURN(sources.training, trainer::MakeTask(config::MakeTaskOptions(config)));
  SYNCOPATE_ASSIGN_OR_RETURN(sources.evaluation, trainer::MakeTask(evaluation));
  sources.evaluation_prompts = config.eval().prompts();
  return sources;
}

// Opens each file once: a file that is named twice has one index.
absl::StatusOr<std::vector<trainer::TextRows::File>> OpenList(const std::string& key, const std::string& list,
                                                              OpenFiles* open) {
  std::vector<trainer::TextRows::File> files;
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<config::DataFile> named, config::ParseDataFiles(list));
  for (const config::DataFile& one : named) {
    std::shared_ptr<const trainer::JsonlFile>& file = (*open)[one.path];
    if (file == nullptr) {
      auto opened = trainer::JsonlFile::Open(one.path);
      if (!opened.ok()) return Annotate(opened.status(), key);
      file = *std::move(opened);
      SYNCOPATE_LOG(kInfo, "%s: %s has %d rows, SHA-256 %s", key, one.path, file->rows(), file->sha256());
    }
    files.push_back({file, one.weight});
  }
  return files;
}

std::string ComputeFingerprint(const std::vector<trainer::TextRows::File>& training,
                               const std::vector<trainer::TextRows::File>& evaluation) {
  auto describe = [](const std::vector<trainer::TextRows::File>& files) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& one : files) list.push_back({{"sha256", one.file->sha256()}, {"weight", one.weight}});
    return list;
  };
  return nlohmann::json{{"files", describe(training)}, {"eval_files", describe(evaluation)}}.dump();
}

// Sets are read like data.eval_files; they are no part of the fingerprint, as they may change with a resume.
absl::Status OpenSets(const v1::RunConfig& config, const trainer::TextRows& like,
                      std::vector<EvaluationSetSource>* sources) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<config::EvaluationSetText> sets,
                             config::ParseEvaluationSets(config.eval().sets()));
  OpenFiles open;
  for (const config::EvaluationSetText& set : sets) {
    trainer::TextRows rows = like;
    SYNCOPATE_ASSIGN_OR_RETURN(rows.files, OpenList("eval.sets", set.path, &open));
    const int64_t prompts = set.prompts > 0 ? set.prompts : rows.files.front().file->rows();
    auto chosen = trainer::ChosenPrompts::Read({.seed = static_cast<uint64_t>(config.eval().seed()),
                                                .bad_rows_end_run = config.data().bad_rows() == "error",
                                                .prompts = prompts},
                                               rows);
    if (!chosen.ok()) return Annotate(chosen.status(), absl::StrCat("eval.sets ", set.name));
    const int64_t count = (*chosen)->size();
    sources->push_back({set, *std::move(chosen), count});
  }
  return absl::OkStatus();
}

absl::StatusOr<PromptSources> OpenText(const v1::RunConfig& config, const config::RunModel& model,
                                       trainer::EnvironmentTools tools) {
  PromptSources sources;
  OpenFiles open;
  trainer::TextRows rows, evaluated;
  SYNCOPATE_ASSIGN_OR_RETURN(rows.files, OpenList("data.files", config.data().files(), &open));
  SYNCOPATE_ASSIGN_OR_RETURN(evaluated.files, OpenList("data.eval_files", config.data().eval_files(), &open));
  sources.fingerprint = ComputeFingerprint(rows.files, evaluated.files);
  // After the fingerprint, which describes the configured files.
  if (evaluated.files.empty()) evaluated.files = rows.files;
  SYNCOPATE_ASSIGN_OR_RETURN(const model::HfModel described, model::ReadHfConfig(model.description));
  const trainer::PromptWriter::Options writer_options = config::PromptWriterOptions(config, described);
  auto writer = trainer::PromptWriter::Load(FileSystem::Real(), model.description, writer_options);
  if (!writer.ok()) return Annotate(writer.status(), "model.path");
  rows.writer = *writer;
  rows.fields = config::GetRowFields(config);
  rows.fields.tools = std::move(tools);
  evaluated.fields = rows.fields;
  evaluated.writer = rows.writer;
  const bool bad_rows_end_run = config.data().bad_rows() == "error";
  SYNCOPATE_ASSIGN_OR_RETURN(auto chosen,
                             trainer::ChosenPrompts::Read({.seed = static_cast<uint64_t>(config.eval().seed()),
                                                           .bad_rows_end_run = bad_rows_end_run,
                                                           .prompts = config.eval().prompts()},
                                                          evaluated));
  SYNCOPATE_RETURN_IF_ERROR(OpenSets(config, evaluated, &sources.evaluation_sets));
  sources.evaluation_prompts = chosen->size();
  sources.evaluation = std::move(chosen);
  SYNCOPATE_ASSIGN_OR_RETURN(
      sources.training,
      trainer::TextSource::Create(
          {.seed = static_cast<uint64_t>(config.run().seed()), .bad_rows_end_run = bad_rows_end_run}, std::move(rows)));
  return sources;
}

}  // namespace

absl::StatusOr<PromptSources> OpenPromptSources(const v1::RunConfig& config, const config::RunModel& model,
                                                trainer::EnvironmentTools tools) {
  return config.data().files().empty() ? OpenTask(config) : OpenText(config, model, std::move(tools));
}

// A resumed run continues at a position in a shuffled order; in other files that position would be another row.
absl::Status KeepFingerprint(FileSystem* files, const std::string& run_dir, const std::string& fingerprint) {
  const std::string folder = JoinPath(run_dir, kStateFolder), path = JoinPath(folder, "data.json");
  absl::StatusOr<std::string> kept = ReadFile(files, path, kMaxRecordBytes);
  if (absl::IsNotFound(kept.status())) {
    SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(folder));
    return WriteFileAtomically(files, path, fingerprint);
  }
  SYNCOPATE_RETURN_IF_ERROR(kept.status());
  if (*kept == fingerprint) return absl::OkStatus();
  return Error(
      absl::StatusCode::kFailedPrecondition, "FIXED_KEY",
      absl::StrCat("data.files, data.eval_files: the run in ", run_dir,
                   " was begun with other contents or weights, which are fixed for the whole run; it had ",
                   kept->empty() ? "none" : *kept, " and is given ", fingerprint.empty() ? "none" : fingerprint));
}

}  // namespace syncopate::trainerd
