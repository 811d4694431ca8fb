#include "tools/doctor/inputs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file_system.h"
#include "base/mapped_file.h"
#include "model/hf_config.h"
#include "rollouter/reward/reward_formula.h"
#include "services/config/data_files.h"
#include "services/config/rules.h"
#include "services/config/run_model.h"
#include "services/config/text_options.h"
#include "tools/doctor/model.h"
#include "trainer/data/jsonl_file.h"

namespace syncopate::doctor {
namespace {

using Level = Finding::Level;

constexpr int kRows = 32;  // read from each file

Finding BadInput(const std::string& subject, const std::string& looked_at, const absl::Status& why,
                 const std::string& remedy) {
  return {Level::kBad, subject, looked_at, std::string(why.message()), remedy};
}

// Checks that prompts and answers of this run fit the model's context.
Finding ExamineContext(const v1::RunConfig& config, const model::HfModel& model) {
  const int64_t longest = config::GetShape(config.data()).prompt_tokens + config::LongestAnswer(config);
  const int64_t context = std::max(config.model().context_length(), longest);
  const std::string looked_at = "data.max_prompt_tokens, rollout.max_new_tokens, model.context_length";
  const absl::Status fits = model.WithContext(context).status();
  if (!fits.ok()) return BadInput("context", looked_at, fits, "lower one of these keys");
  return {Level::kGood, "context", looked_at, absl::StrCat(context, " tokens of ", model.longest_context()), ""};
}

std::vector<Finding> ExamineRunModel(const v1::RunConfig& config) {
  const std::string& folder = config.model().path();
  std::vector<Finding> findings = ExamineModel(folder, /*python=*/"");
  const absl::StatusOr<model::HfModel> described = model::ReadHfConfig(folder);
  if (described.ok()) findings.push_back(ExamineContext(config, *described));
  return findings;
}

// Checks that the adapters that the run trains fit its model; of lora.path every number.
Finding ExamineAdapters(const v1::RunConfig& config) {
  const std::string& folder = config.lora().path();
  const std::string looked_at = folder.empty() ? "lora.rank, lora.target_modules, the model" : folder;
  const std::string remedy = "docs/adapters.md says which adapters a run can train";
  const absl::StatusOr<config::RunModel> model = config::FindRunModel(config);
  if (!model.ok()) return BadInput("adapters", looked_at, model.status(), remedy);
  const auto files = config::OpenInitialAdapters(config, *model);
  if (!files.ok()) return BadInput("adapters", looked_at, files.status(), remedy);
  return {Level::kGood, "adapters", looked_at,
          absl::StrCat("rank ", model->shape.lora.rank, " on ", absl::StrJoin(model->shape.lora.projections, ", ")),
          ""};
}

// The first rows of a file, without blank lines; a row that is too long is cut at the limit.
std::vector<std::pair<int64_t, absl::string_view>> FirstRows(absl::string_view text) {
  std::vector<std::pair<int64_t, absl::string_view>> rows;  // with their line numbers, from 1
  for (int64_t line = 1; !text.empty() && rows.size() < kRows; ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const absl::string_view row = text.substr(0, std::min<size_t>(end, trainer::JsonlFile::kMaxRowBytes + 1));
    if (row.find_first_not_of(" \t\r") != absl::string_view::npos) rows.emplace_back(line, row);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return rows;
}

// The result for the first rows of one file.
struct RowTally {
  int64_t rows = 0;
  int64_t bad = 0;
  int64_t without_answer = 0;
  int64_t longest = 0;    // the longest prompt in tokens; 0 without a tokenizer
  std::string first_bad;  // the place and the reason
};

// `writer` may be null.
absl::StatusOr<RowTally> TallyRows(const std::string& path, const trainer::RowFields& fields,
                                   const trainer::PromptWriter* writer) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  SYNCOPATE_RETURN_IF_ERROR(trainer::CheckJsonlBeginning(file->bytes(), path));
  RowTally tally;
  for (const auto& [line, text] : FirstRows(file->bytes())) {
    ++tally.rows;
    const auto row = trainer::ParsePromptRow(text, fields, trainer::JsonlFile::kMaxRowBytes);
    absl::Status status = row.status();
    if (row.ok()) {
      tally.without_answer += row->answer.is_null();
      if (writer != nullptr) {
        const auto prompt = writer->Write(*row, /*cache=*/nullptr);
        status = prompt.status();
        if (prompt.ok()) tally.longest = std::max(tally.longest, static_cast<int64_t>(prompt->prompt_ids.size()));
      }
    }
    if (status.ok()) continue;
    if (tally.bad++ == 0) tally.first_bad = absl::StrCat(path, ":", line, ": ", status.message());
  }
  if (tally.rows > 0) return tally;
  return Error(absl::StatusCode::kInvalidArgument, "EMPTY_FILE", absl::StrCat(path, " contains no rows"));
}

// Whether a reward compares answers with a row's right answer.
bool NeedsAnswers(const v1::RunConfig& config) {
  const auto terms = rollouter::ParseRewardFormula(config.reward().name());
  if (!terms.ok()) return false;
  static const auto* const comparing = new std::set<std::string>{"dense", "exact", "match", "final_number", "math"};
  return std::any_of(terms->begin(), terms->end(),
                     [](const rollouter::RewardTerm& term) { return comparing->count(term.part) > 0; });
}

Finding ExamineFile(const v1::RunConfig& config, const std::string& key, const std::string& path,
                    const trainer::PromptWriter* writer) {
  const absl::StatusOr<RowTally> tally = TallyRows(path, config::GetRowFields(config), writer);
  if (!tally.ok()) return BadInput(key, path, tally.status(), "see docs/data.md for what is read");
  const std::string looked_at = absl::StrCat("the first ", tally->rows, " rows of ", path);
  if (tally->bad > 0) {
    const bool ends = tally->bad == tally->rows || config.data().bad_rows() == "error";
    return {ends ? Level::kBad : Level::kWarning, key, looked_at,
            absl::StrCat(tally->bad, " cannot be used; ", tally->first_bad),
            "mend the rows, or name their fields by data.prompt_field, data.answer_field"};
  }
  if (tally->without_answer > 0 && NeedsAnswers(config)) {
    return {Level::kWarning, key, looked_at, absl::StrCat(tally->without_answer, " have no right answer"),
            "name the answer's field by data.answer_field: rewards compare with it"};
  }
  return {Level::kGood, key, looked_at,
          tally->longest > 0 ? absl::StrCat("good; prompts of up to ", tally->longest, " tokens") : "good", ""};
}

// The writer of the run's prompts; null if the model directory has none, which ExamineModel reports.
std::shared_ptr<const trainer::PromptWriter> OpenWriter(const v1::RunConfig& config) {
  const absl::StatusOr<model::HfModel> described = model::ReadHfConfig(config.model().path());
  if (!described.ok()) return nullptr;
  const auto writer = trainer::PromptWriter::Load(FileSystem::Real(), config.model().path(),
                                                  config::PromptWriterOptions(config, *described));
  return writer.ok() ? *writer : nullptr;
}

std::vector<Finding> ExamineFiles(const v1::RunConfig& config) {
  std::vector<Finding> findings;
  std::set<std::string> seen;
  const std::shared_ptr<const trainer::PromptWriter> writer = OpenWriter(config);
  for (const auto& [key, list] : {std::pair<std::string, std::string>("data.files", config.data().files()),
                                  {"data.eval_files", config.data().eval_files()}}) {
    const auto files = config::ParseDataFiles(list);
    if (!files.ok()) continue;  // the rules of the configuration report it
    for (const config::DataFile& file : *files) {
      if (seen.insert(file.path).second) findings.push_back(ExamineFile(config, key, file.path, writer.get()));
    }
  }
  return findings;
}

// The program that a shell would start for `command`, after assignments of variables; "" if it is no plain word.
std::string GetProgram(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (absl::StrContains(word, "=")) continue;
    return word.find_first_of("\"'$(){};&|<>`\\") == std::string::npos ? word : "";
  }
  return "";
}

// The first Python reward of the formula whose name does not occur as a string literal in these files; "" if there is
// none, or no file.
std::string FindUnknownReward(const v1::RunConfig& config, const std::vector<std::string>& files) {
  constexpr int64_t kMaxBytes = 16 << 20;
  std::string code;
  for (const std::string& file : files) {
    absl::StrAppend(&code, ReadFile(FileSystem::Real(), file, kMaxBytes).value_or(""), "\n");
  }
  const auto terms = rollouter::ParseRewardFormula(config.reward().name());
  if (files.empty() || !terms.ok()) return "";
  for (const rollouter::RewardTerm& term : *terms) {
    const bool known = absl::StrContains(code, absl::StrCat("\"", term.name, "\"")) ||
                       absl::StrContains(code, absl::StrCat("'", term.name, "'"));
    if (term.source == rollouter::RewardTerm::Source::kPython && !known) return term.name;
  }
  return "";
}

Finding ExamineWorker(const v1::RunConfig& config) {
  const std::string& command = config.environment().command();
  const std::vector<std::string> words = absl::StrSplit(command, ' ', absl::SkipEmpty());
  const std::string subject = "worker", looked_at = absl::StrCat("environment.command = ", command);
  const std::string program = GetProgram(words);
  const char* search_path = std::getenv("PATH");
  const std::string found = FindProgram(program, search_path == nullptr ? "" : search_path);
  std::error_code ignored;
  if (!program.empty() && (found.empty() || !std::filesystem::exists(found, ignored))) {
    return {Level::kBad, subject, looked_at, absl::StrCat(program, " is not found"),
            "pip install ./python has syncopate-worker; or write its whole path"};
  }
  std::vector<std::string> files;
  for (const std::string& word : words) {
    if (!absl::EndsWith(word, ".py")) continue;
    if (!std::filesystem::exists(word, ignored)) {
      return {Level::kBad, subject, looked_at, absl::StrCat(word, " is not there"),
              "paths are taken from where the run is started"};
    }
    files.push_back(word);
  }
  const std::string unknown = FindUnknownReward(config, files);
  if (!unknown.empty()) {
    return {Level::kWarning, subject, looked_at, absl::StrCat("no reward \"", unknown, "\" is seen in its files"),
            "compare reward.name with the names behind @reward; the run asks the worker itself"};
  }
  return {Level::kGood, subject, looked_at, program.empty() ? "a command of the shell" : found, ""};
}

}  // namespace

std::vector<Finding> ExamineInputs(const v1::RunConfig& config) {
  std::vector<Finding> findings;
  if (!config.model().path().empty()) findings = ExamineRunModel(config);
  if (config::HasAdapters(config)) findings.push_back(ExamineAdapters(config));
  for (Finding& finding : ExamineFiles(config)) findings.push_back(std::move(finding));
  if (!config.environment().command().empty()) findings.push_back(ExamineWorker(config));
  return findings;
}

}  // namespace syncopate::doctor
