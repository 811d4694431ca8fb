#include "tools/doctor/model.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file_system.h"
#include "base/philox.h"
#include "base/reasons.h"
#include "base/utf8.h"
#include "model/hf_config.h"
#include "model/weight_files.h"
#include "text/template/chat_format.h"
#include "text/tokenizer/tokenizer.h"
#include "tools/doctor/looks.h"

namespace syncopate::doctor {
namespace {

using Level = Finding::Level;
using text::tokenizer::Tokenizer;

constexpr int kStrings = 4000;
constexpr int64_t kMaxReplyBytes = 256 << 20;

// Prints one JSON list [ids, text of the ids] for each JSON string in a file.
constexpr char kScript[] = R"(
import json, sys
try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit("this Python has no package tokenizers")
t = Tokenizer.from_file(sys.argv[1])
t.no_truncation()
t.no_padding()
for line in open(sys.argv[2], encoding="utf-8"):
    ids = t.encode(json.loads(line)).ids
    print(json.dumps([ids, t.decode(ids, skip_special_tokens=False)]))
)";

Finding Good(const std::string& subject, const std::string& looked_at, const std::string& found) {
  return {Level::kGood, subject, looked_at, found, ""};
}

Finding Bad(const std::string& subject, const std::string& looked_at, const absl::Status& why,
            const std::string& remedy) {
  return {Level::kBad, subject, looked_at, std::string(why.message()), remedy};
}

std::vector<Finding> ExamineWeights(const std::string& folder, const model::HfModel& described) {
  std::vector<Finding> findings;
  const model::ModelConfig& shape = described.config;
  findings.push_back(Good("model", JoinPath(folder, "config.json"),
                          absl::StrCat(shape.num_hidden_layers, " layers of ", shape.hidden_size, ", ",
                                       shape.vocab_size, " tokens, context ", described.longest_context())));
  const auto weights = model::WeightFiles::Open(folder, shape);
  const absl::Status numbers = weights.ok() ? (*weights)->CheckFinite() : weights.status();
  findings.push_back(numbers.ok()
                         ? Good("weights", folder, "every tensor is there, with its shape, and every number is finite")
                         : Bad("weights", folder, numbers,
                               ErrorReason(numbers) == reason::kNonFinite
                                   ? "take another copy or another model: nothing can be learned from such numbers"
                                   : "download the files again"));
  const std::string source = "generation_config.json, config.json";
  if (described.eos_token_ids.empty()) {
    findings.push_back({Level::kWarning, "end of answers", source, "no token ends an answer",
                        "put eos_token_id into generation_config.json, or every answer is as long as it may be"});
  } else {
    findings.push_back(Good("end of answers", source, absl::StrCat(described.eos_token_ids.size(), " tokens")));
  }
  return findings;
}

// Checks whether the template can write conversations with tools.
Finding ExamineTools(const text::chat::ChatFormat& format, const std::string& source) {
  constexpr char kTool[] = "look_up";
  constexpr int64_t kAnyDay = 1735689600;
  text::chat::ChatRequest request;
  request.messages.push_back({{"role", "user"}, {"content", "What is it?"}});
  request.tools = nlohmann::ordered_json::parse(
      R"([{"type": "function", "function": {"name": "look_up", "description": "Looks a word up.",
           "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}}])");
  const auto rendered = format.Render(request, kAnyDay);
  const std::string remedy =
      "rows whose conversations have tools, or answers of tools, are bad rows with this template";
  if (!rendered.ok()) {
    return {Level::kWarning, "tools", source, absl::StrCat("refused: ", rendered.status().message()), remedy};
  }
  if (!format.prefixes().tool_answer.has_value()) {
    return {Level::kWarning, "tools", source, "the template refuses the answer of a tool", remedy};
  }
  if (rendered->text.find(kTool) == std::string::npos) {
    return {Level::kWarning, "tools", source, "the template leaves them out",
            "the model is not told which tools it has"};
  }
  return Good("tools", source, "written down");
}

std::vector<Finding> ExamineTemplate(const std::string& folder) {
  const std::string source = "chat_template.jinja, tokenizer_config.json";
  const auto format = text::chat::ChatFormat::Load(FileSystem::Real(), folder);
  if (ErrorReason(format.status()) == reason::kNoChatTemplate) {
    return {{Level::kWarning, "chat template", source, "there is none",
             "prompts of data files are to be plain texts then, not conversations"}};
  }
  if (!format.ok()) return {Bad("chat template", source, format.status(), "set data.chat_template=off, or mend it")};
  return {Good("chat template", source, format->prefixes().Describe()), ExamineTools(*format, source)};
}

// Builds a string from what tokenizers often differ in: scripts, marks, blanks, digits, runs, parts of special tokens.
std::string MakeString(uint64_t number) {
  constexpr struct {
    char32_t first, last;
  } kRanges[] = {{0x20, 0x7e},     {0x20, 0x7e},     {0x61, 0x7a},     {0x30, 0x39},       {0x09, 0x0d},
                 {0xa0, 0x24f},    {0x300, 0x36f},   {0x370, 0x52f},   {0x590, 0x6ff},     {0x900, 0x97f},
                 {0xe00, 0xe7f},   {0x1100, 0x11ff}, {0x2000, 0x206f}, {0x3040, 0x30ff},   {0x4e00, 0x9fff},
                 {0xac00, 0xd7a3}, {0xfb00, 0xfdff}, {0xff00, 0xffef}, {0x1f300, 0x1faff}, {0x10000, 0x1ffff}};
  constexpr const char* kWords[] = {" the", "'s", "'LL", "\n\n", "    ", "<|im_end|>", "<s>", "12345", "://", "ſ"};
  std::string text;
  const uint32_t parts = Philox4x32(number, 0)[0] % 12 + 1;
  for (uint32_t part = 1; part <= parts; ++part) {
    const auto dice = Philox4x32(number, part);
    if (dice[0] % 4 == 0) {
      text += kWords[dice[1] % std::size(kWords)];
      continue;
    }
    const auto& range = kRanges[dice[1] % std::size(kRanges)];
    for (uint32_t i = 0; i <= dice[2] % 6; ++i) {
      const uint32_t draw = Philox4x32(number, part, i + 1)[3];
      AppendUtf8(range.first + draw % (range.last - range.first + 1), &text);
    }
  }
  return text;
}

// The reference's answers for all strings; INVALID_ARGUMENT if its output is malformed.
absl::StatusOr<std::string> AskReference(const std::string& folder, const std::string& python,
                                         const std::string& work) {
  std::string lines;
  for (int i = 0; i < kStrings; ++i) absl::StrAppend(&lines, nlohmann::json(MakeString(i)).dump(), "\n");
  const std::string strings = JoinPath(work, "strings.jsonl"), log = JoinPath(work, "reply.jsonl");
  SYNCOPATE_RETURN_IF_ERROR(WriteFileAtomically(FileSystem::Real(), strings, lines));
  SYNCOPATE_RETURN_IF_ERROR(RunToEnd(python, {"-c", kScript, JoinPath(folder, "tokenizer.json"), strings}, log));
  return ReadFile(FileSystem::Real(), log, kMaxReplyBytes);
}

// The first string for which the reference's answer differs, in words; nullopt: no difference.
absl::StatusOr<std::optional<std::string>> FindDifference(const Tokenizer& tokenizer, const std::string& reply) {
  const std::vector<std::string> lines = absl::StrSplit(reply, '\n', absl::SkipEmpty());
  if (lines.size() != kStrings) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_REPLY",
                 absl::StrCat(lines.size(), " answers instead of ", kStrings));
  }
  for (int i = 0; i < kStrings; ++i) {
    const auto json = nlohmann::json::parse(lines[i], nullptr, /*allow_exceptions=*/false);
    const std::string text = MakeString(i);
    const auto ids = tokenizer.Encode(text, /*add_special_tokens=*/true);
    if (!ids.ok()) return ids.status();
    const nlohmann::json ours = {*ids, tokenizer.Decode(*ids, /*skip_special_tokens=*/false)};
    if (json != ours) {
      return absl::StrCat(nlohmann::json(text).dump(), " is ", ours.dump(), " here and ", lines[i], " there");
    }
  }
  return std::nullopt;
}

Finding CompareWithReference(const std::string& folder, const Tokenizer& tokenizer, const std::string& python) {
  const std::string looked_at = absl::StrCat(kStrings, " strings, with the package tokenizers of ", python);
  std::string work = "/tmp/syncopate-doctor-XXXXXX";
  if (::mkdtemp(work.data()) == nullptr) {
    return Bad("reference", "/tmp", absl::UnavailableError("no temporary folder can be made"), "make room under /tmp");
  }
  const auto reply = AskReference(folder, python, work);
  FileSystem::Real()->RemoveTree(work).IgnoreError();  // it is under /tmp
  if (!reply.ok()) return Bad("reference", looked_at, reply.status(), "pip install tokenizers==0.23.3 for that Python");
  const auto difference = FindDifference(tokenizer, *reply);
  if (!difference.ok()) return Bad("reference", looked_at, difference.status(), "look at what that Python says");
  if (!difference->has_value()) return Good("reference", looked_at, "the same ids and texts");
  return {Level::kBad, "reference", looked_at, **difference, "please report it, with the model's name"};
}

}  // namespace

std::string FindProgram(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) return name;
  for (absl::string_view folder : absl::StrSplit(search_path, ':', absl::SkipEmpty())) {
    const std::string path = JoinPath(folder, name);
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

std::vector<Finding> ExamineModel(const std::string& folder, const std::string& python) {
  std::vector<Finding> findings;
  const absl::StatusOr<model::HfModel> described = model::ReadHfConfig(folder);
  if (described.ok()) {
    findings = ExamineWeights(folder, *described);
  } else {
    findings.push_back(Bad("model", folder, described.status(), "see docs/models.md for what is read"));
  }
  for (Finding& finding : ExamineTemplate(folder)) findings.push_back(std::move(finding));
  const auto tokenizer = Tokenizer::Load(FileSystem::Real(), folder);
  if (!tokenizer.ok()) {
    findings.push_back(Bad("tokenizer", folder, tokenizer.status(), "see docs/text.md for what is read"));
    return findings;
  }
  const bool fits = !described.ok() || (*tokenizer)->id_limit() <= described->config.vocab_size;
  const std::string tokens = absl::StrCat((*tokenizer)->id_limit(), " tokens");
  findings.push_back(fits ? Good("tokenizer", JoinPath(folder, "tokenizer.json"), tokens)
                          : Finding{Level::kWarning, "tokenizer", JoinPath(folder, "tokenizer.json"), tokens,
                                    "the model has fewer: prompts with the others are bad rows"});
  if (!python.empty()) findings.push_back(CompareWithReference(folder, **tokenizer, python));
  return findings;
}

}  // namespace syncopate::doctor
