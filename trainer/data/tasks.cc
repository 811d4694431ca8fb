#include "trainer/data/tasks.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/philox.h"
#include "base/status.h"
#include "trainer/data/guess_task.h"

namespace syncopate::trainer {
namespace {

using Symbols = std::vector<int32_t>;

constexpr char kGuess[] = "guess";

Symbols Reverse(Symbols x) {
  std::reverse(x.begin(), x.end());
  return x;
}

Symbols Copy(Symbols x) { return x; }

Symbols Sort(Symbols x) {
  std::sort(x.begin(), x.end());
  return x;
}

// `x` contains two numbers of equal length.
Symbols Add(Symbols x) {
  const size_t length = x.size() / 2;
  Symbols sum(length + 1);
  int32_t carry = 0;
  for (size_t i = length; i-- > 0;) {
    const int32_t digit = x[i] + x[length + i] + carry;
    sum[i + 1] = digit % 10;
    carry = digit / 10;
  }
  sum[0] = carry;
  return sum;
}

struct TaskKind {
  const char* name;
  Symbols (*answer)(Symbols);
  bool numbers;  // the symbols of a prompt are two numbers in decimal
};

constexpr std::array<TaskKind, 4> kTasks = {{
    {"reverse", Reverse, false},
    {"copy", Copy, false},
    {"sort", Sort, false},
    {"add", Add, true},
}};

const TaskKind* FindTask(const std::string& name) {
  auto found = std::find_if(kTasks.begin(), kTasks.end(), [&](const TaskKind& kind) { return name == kind.name; });
  return found == kTasks.end() ? nullptr : &*found;
}

class Task final : public PromptSource {
 public:
  Task(const TaskOptions& options, const TaskKind& kind)
      : kind_(kind),
        alphabet_(kind.numbers ? 10 : static_cast<int32_t>(options.alphabet)),
        symbols_(kind.numbers ? 2 * options.length : options.length),
        answer_symbols_(kind.numbers ? options.length + 1 : options.length),
        seed_(options.seed) {}

  Prompt At(const GroupId& group) const override {
    const uint64_t key = HashCombine(seed_, static_cast<uint64_t>(group.pass));
    Symbols x(symbols_);
    for (int64_t i = 0; i < symbols_; ++i) {
      const uint32_t word = Philox4x32(key, static_cast<uint64_t>(i / 4), static_cast<uint64_t>(group.ordinal))[i % 4];
      x[i] = static_cast<int32_t>((uint64_t{word} * static_cast<uint64_t>(alphabet_)) >> 32);
    }
    Prompt prompt;
    prompt.prompt_ids.push_back(bos());
    prompt.prompt_ids.insert(prompt.prompt_ids.end(), x.begin(), x.end());
    prompt.prompt_ids.push_back(sep());
    prompt.answer_ids = kind_.answer(std::move(x));
    prompt.answer_ids.push_back(eos());
    return prompt;
  }

  std::string Render(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool second_number = kind_.numbers && ids[0] == bos() && static_cast<int64_t>(i) == symbols_ / 2 + 1;
      if (second_number) text += " + ";
      absl::StrAppend(&text, RenderOne(ids[i]));
    }
    return text;
  }

  int64_t prompts_per_pass() const override { return 0; }
  int32_t vocab_size() const override { return alphabet_ + 3; }
  std::vector<int32_t> stop_token_ids() const override { return {eos()}; }
  int64_t max_prompt_tokens() const override { return symbols_ + 2; }
  int64_t max_answer_tokens() const override { return answer_symbols_ + 1; }

 private:
  int32_t bos() const { return alphabet_; }
  int32_t sep() const { return alphabet_ + 1; }
  int32_t eos() const { return alphabet_ + 2; }

  // Letters while there are enough of them; a stop token is a full stop, so that its absence shows.
  std::string RenderOne(int32_t id) const {
    if (id == bos()) return "";
    if (id == sep()) return kind_.numbers ? " =" : " ->";
    if (id == eos()) return ".";
    if (id < 0 || id > eos()) return "?";
    if (kind_.numbers) return absl::StrCat(id);
    if (alphabet_ <= 26) return std::string(1, static_cast<char>('a' + id));
    return absl::StrCat("<", id, ">");
  }

  const TaskKind& kind_;
  const int32_t alphabet_;
  const int64_t symbols_;         // in a prompt
  const int64_t answer_symbols_;  // in an answer
  const uint64_t seed_;
};

}  // namespace

absl::Status TaskOptions::Validate() const {
  auto bad = [](const std::string& reason, const std::string& text) {
    return Error(absl::StatusCode::kInvalidArgument, reason, text);
  };
  if (name != kGuess && FindTask(name) == nullptr) {
    return bad("UNKNOWN_TASK",
               absl::StrCat("no task is called '", name, "'; there are ", absl::StrJoin(TaskNames(), ", ")));
  }
  if (length < 1 || length > 4096) return bad("BAD_OPTIONS", absl::StrCat("length is ", length, ", not in [1, 4096]"));
  if (alphabet < 2 || alphabet > 1000000) {
    return bad("BAD_OPTIONS", absl::StrCat("alphabet is ", alphabet, ", not in [2, 1000000]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PromptSource>> MakeTask(const TaskOptions& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  if (options.name == kGuess) return MakeGuessTask(options.seed);
  return std::make_unique<Task>(options, *FindTask(options.name));
}

std::vector<std::string> TaskNames() {
  std::vector<std::string> names;
  names.reserve(kTasks.size() + 1);
  for (const TaskKind& kind : kTasks) names.emplace_back(kind.name);
  names.emplace_back(kGuess);
  return names;
}

}  // namespace syncopate::trainer
