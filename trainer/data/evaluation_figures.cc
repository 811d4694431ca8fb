#include "trainer/data/evaluation_figures.h"

#include <algorithm>
#include <filesystem>

namespace syncopate::trainer {
namespace {

// Maps each path to its file name, or to the whole path if two files in different folders have the same name.
std::map<std::string, std::string> FileNames(const std::vector<std::string>& paths) {
  std::map<std::string, int> same;
  for (const std::string& path : paths) ++same[std::filesystem::path(path).filename().string()];
  std::map<std::string, std::string> names;
  for (const std::string& path : paths) {
    const std::string name = std::filesystem::path(path).filename().string();
    names[path] = same[name] == 1 ? name : path;
  }
  return names;
}

}  // namespace

EvaluationTally::Sum* EvaluationTally::AddTo(const std::string& name, double value, size_t most, Sums* sums) {
  if (sums->size() >= most && !sums->contains(name)) return nullptr;
  Sum& sum = (*sums)[name];
  ++sum.count;
  sum.sum += value;
  return &sum;
}

void EvaluationTally::AddAnswer(const std::string& name, const Trajectory& answer, Sums* sums) {
  Sum* sum = AddTo(name, answer.reward, kMaxSubsets, sums);
  if (sum == nullptr) return;
  sum->tokens += WrittenTokens(answer);
  sum->turns += std::ssize(answer.turns);
}

void EvaluationTally::Add(const Prompt& prompt, const Trajectory& answer) {
  const int64_t length = WrittenTokens(answer);
  shortest_ = answers_ == 0 ? length : std::min(shortest_, length);
  longest_ = std::max(longest_, length);
  tokens_ += length;
  turns_ += std::ssize(answer.turns);
  truncated_ += answer.finish == FinishReason::kLength ? 1 : 0;
  ++answers_;
  for (const RewardPart& part : answer.reward_parts) AddTo(part.name, part.value, kMaxParts, &parts_);
  // A built-in task has no file and so no subsets.
  if (prompt.origin.file.empty()) return;
  AddAnswer(prompt.origin.file, answer, &files_);
  const std::string& source = prompt.origin.data_source;
  AddAnswer(source.empty() ? kNoSource : source, answer, &data_sources_);
  if (!prompt.origin.environment.empty()) AddAnswer(prompt.origin.environment, answer, &environments_);
}

std::vector<EvaluationFigures::Subset> EvaluationTally::Subsets(const Sums& sums) {
  std::vector<EvaluationFigures::Subset> subsets;
  for (const auto& [name, sum] : sums) {
    const auto count = static_cast<double>(sum.count);
    subsets.push_back({.name = name,
                       .prompts = sum.count,
                       .reward_mean = sum.mean(),
                       .response_tokens_mean = static_cast<double>(sum.tokens) / count,
                       .turns_mean = static_cast<double>(sum.turns) / count});
  }
  return subsets.size() > 1 ? subsets : std::vector<EvaluationFigures::Subset>();
}

EvaluationFigures EvaluationTally::Figures() const {
  EvaluationFigures figures{.response_tokens_min = shortest_,
                            .response_tokens_max = longest_,
                            .truncated = truncated_,
                            .files = Subsets(files_),
                            .data_sources = Subsets(data_sources_),
                            .environments = Subsets(environments_)};
  if (answers_ > 0) {
    figures.response_tokens_mean = static_cast<double>(tokens_) / static_cast<double>(answers_);
    figures.turns_mean = static_cast<double>(turns_) / static_cast<double>(answers_);
  }
  for (const auto& [name, sum] : parts_) figures.reward_parts[name] = sum.mean();
  std::vector<std::string> paths;
  for (const EvaluationFigures::Subset& file : figures.files) paths.push_back(file.name);
  const std::map<std::string, std::string> names = FileNames(paths);
  for (EvaluationFigures::Subset& file : figures.files) file.name = names.at(file.name);
  return figures;
}

}  // namespace syncopate::trainer
