#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/git_lfs.h"
#include "base/strict_json.h"
#include "base/utf8.h"

namespace syncopate::text::tokenizer {
namespace {

constexpr size_t kMostAround = 64;  // most special tokens that a file may put around a text

absl::StatusOr<AddedToken> ReadAddedToken(const JsonNode& node) {
  AddedToken token;
  SYNCOPATE_ASSIGN_OR_RETURN(token.content, node.String("content"));
  SYNCOPATE_ASSIGN_OR_RETURN(token.id, node.Index("id"));
  SYNCOPATE_ASSIGN_OR_RETURN(token.special, node.BoolOr("special", false));
  SYNCOPATE_ASSIGN_OR_RETURN(token.normalized, node.BoolOr("normalized", true));
  SYNCOPATE_ASSIGN_OR_RETURN(token.takes_blanks_before, node.BoolOr("lstrip", false));
  SYNCOPATE_ASSIGN_OR_RETURN(token.takes_blanks_after, node.BoolOr("rstrip", false));
  SYNCOPATE_ASSIGN_OR_RETURN(bool single_word, node.BoolOr("single_word", false));
  // The reference takes its word boundaries from yet another Unicode version, and no chat model has such tokens.
  if (single_word) return node.Refuse("an added token with single_word");
  return token;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Parse(absl::string_view json, const TokenizerLimits& limits,
                                                                  const PreTokenizer::Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(const nlohmann::json file, ParseStrictJson(json, {.max_bytes = limits.max_file_bytes,
                                                                               .max_depth = limits.max_depth}));
  const JsonNode root(&file, "");
  const auto part = [&root](absl::string_view key) { return root.Object(key); };
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer);
  tokenizer->limits_ = limits;
  if (root.Has("normalizer")) {
    SYNCOPATE_ASSIGN_OR_RETURN(JsonNode node, part("normalizer"));
    SYNCOPATE_ASSIGN_OR_RETURN(tokenizer->normalizer_, Normalizer::Parse(node));
  }
  if (root.Has("pre_tokenizer")) {
    SYNCOPATE_ASSIGN_OR_RETURN(JsonNode node, part("pre_tokenizer"));
    SYNCOPATE_ASSIGN_OR_RETURN(tokenizer->pre_tokenizer_, PreTokenizer::Parse(node, options));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(JsonNode model, part("model"));
  SYNCOPATE_ASSIGN_OR_RETURN(tokenizer->model_,
                             BytePairModel::Parse(model, {.byte_level = tokenizer->pre_tokenizer_.byte_level(),
                                                          .max_tokens = limits.max_tokens}));
  if (!root.Has("decoder")) return Unsupported("a tokenizer without decoder");
  SYNCOPATE_ASSIGN_OR_RETURN(JsonNode decoder, part("decoder"));
  SYNCOPATE_ASSIGN_OR_RETURN(tokenizer->decoder_, TokenDecoder::Parse(decoder));
  // The encoder and the decoder must both use the byte alphabet, or neither.
  if (tokenizer->decoder_.byte_level() != tokenizer->pre_tokenizer_.byte_level()) {
    return Unsupported("ByteLevel in one of pre_tokenizer and decoder and not in the other");
  }
  SYNCOPATE_RETURN_IF_ERROR(tokenizer->ReadAddedTokens(root));
  tokenizer->FillDecoder();
  if (root.Has("post_processor")) {
    SYNCOPATE_ASSIGN_OR_RETURN(JsonNode node, part("post_processor"));
    SYNCOPATE_RETURN_IF_ERROR(tokenizer->ReadPostProcessor(node));
  }
  return tokenizer;
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Load(FileSystem* files, const std::string& folder,
                                                                 const TokenizerLimits& limits) {
  const std::string path = JoinPath(folder, "tokenizer.json");
  std::error_code failed;
  const std::filesystem::path target = std::filesystem::canonical(path, failed);
  if (failed) {
    return Error(absl::StatusCode::kNotFound, "NO_SUCH_FILE",
                 absl::StrCat("no file ", path,
                              "; a model directory of Hugging Face's form contains one, and tokenizers of "
                              "other forms can be converted with the Python package transformers"));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::string json, ReadFile(files, target.string(), limits.max_file_bytes));
  SYNCOPATE_RETURN_IF_ERROR(RefuseLfsPointer(json, path));
  auto tokenizer = Parse(json, limits);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), path);
  return tokenizer;
}

// Whatever the file says, the reference gives an added token the vocabulary's id if it is in the vocabulary, else the
// next free id. A file with another id for the latter was not made by the reference, and is refused.
absl::Status Tokenizer::ReadAddedTokens(const JsonNode& root) {
  if (!root.Has("added_tokens")) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<JsonNode> nodes, root.Objects("added_tokens"));
  int32_t next = model_->tokens();
  for (const JsonNode& node : nodes) {
    SYNCOPATE_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(node));
    if (token.content.empty()) continue;
    const int32_t known = model_->Find(token.content);
    const auto before = added_.find(token.content);
    const int32_t id = known >= 0 ? known : before != added_.end() ? before->second.id : next;
    if (known < 0 && id != token.id) {
      return Malformed(absl::StrCat("the added token '", absl::CHexEscape(token.content), "' has the id ", token.id,
                                    " where ", id, " is the next"));
    }
    token.id = id;
    next = std::max(next, id + 1);
    if (id >= limits_.max_tokens) return Malformed("too many added tokens");
    added_[token.content] = token;
    std::string text = token.content;
    if (token.normalized) {
      SYNCOPATE_ASSIGN_OR_RETURN(text, normalizer_.Normalize(text, limits_.max_text_bytes));
    }
    (token.normalized ? normalized_added_ : raw_added_).Add(std::move(token), text);
  }
  return absl::OkStatus();
}

void Tokenizer::FillDecoder() {
  for (const auto& [token, id] : model_->vocabulary()) decoder_.Set(id, token, model_->GetByte(id), /*special=*/false);
  // Added tokens are set last: if an id has both, the added token counts.
  for (const auto& [content, token] : added_) decoder_.Set(token.id, content, /*byte=*/-1, token.special);
}

absl::Status Tokenizer::ReadPostProcessor(const JsonNode& node) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string type, node.String("type"));
  if (type == "Sequence") {
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<JsonNode> parts, node.Objects("processors"));
    for (const JsonNode& part : parts) SYNCOPATE_RETURN_IF_ERROR(ReadPostProcessor(part));
    return absl::OkStatus();
  }
  if (type == "TemplateProcessing") return ReadTemplate(node);
  if (type != "ByteLevel")
    return node.Refuse(absl::StrCat("the post-processor ", type));  // ByteLevel is accepted: it only changes offsets
  return absl::OkStatus();
}

absl::Status Tokenizer::ReadTemplate(const JsonNode& node) {
  if (!prefix_.empty() || !suffix_.empty()) return node.Refuse("a second template");
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<JsonNode> parts, node.Objects("single"));
  SYNCOPATE_ASSIGN_OR_RETURN(JsonNode known, node.Object("special_tokens"));
  bool text_came = false;
  for (const JsonNode& part : parts) {
    if (part.Has("Sequence")) {
      if (std::exchange(text_came, true)) return part.Refuse("the text twice");
      continue;
    }
    SYNCOPATE_ASSIGN_OR_RETURN(JsonNode special, part.Object("SpecialToken"));
    SYNCOPATE_ASSIGN_OR_RETURN(std::string name, special.String("id"));
    SYNCOPATE_ASSIGN_OR_RETURN(JsonNode token, known.Object(name));
    const auto ids = token.value().find("ids");
    if (ids == token.value().end() || !ids->is_array()) return Malformed(absl::StrCat(token.path(), ".ids is no list"));
    for (const nlohmann::json& id : *ids) {
      const uint64_t* number = id.get_ptr<const uint64_t*>();
      if (number == nullptr || *number >= static_cast<uint64_t>(id_limit())) {
        return Malformed(absl::StrCat(token.path(), ".ids has an id that no token has"));
      }
      (text_came ? suffix_ : prefix_).push_back(static_cast<int32_t>(*number));
    }
    if (prefix_.size() + suffix_.size() > kMostAround) return node.Refuse("more than 64 tokens around a text");
  }
  return text_came ? absl::OkStatus() : node.Refuse("a template without the text");
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text, bool add_special_tokens,
                                                       PieceCache* cache) const {
  if (static_cast<int64_t>(text.size()) > limits_.max_text_bytes) {
    return Error(absl::StatusCode::kInvalidArgument, "TEXT_TOO_LONG",
                 absl::StrCat("a text of ", text.size(), " bytes is over the limit of ", limits_.max_text_bytes));
  }
  if (const size_t good = WellFormedPrefix(text); good != text.size()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_UTF8",
                 absl::StrCat("the text is not UTF-8: byte ", good, " begins no character"));
  }
  std::vector<int32_t> ids;
  // An estimate: a token has three to four bytes.
  ids.reserve(text.size() / 3 + 4);
  if (add_special_tokens) ids = prefix_;
  absl::Status status;
  // A limit for all parts together, because an untrusted normalizer may make each part longer.
  int64_t bytes_left = 2 * limits_.max_text_bytes;
  // Searches added tokens first, in the raw text: normalizing must not change a special token.
  raw_added_.Cut(
      text,
      [&](absl::string_view part, size_t at) {
        status.Update(EncodePart(part, /*at_start=*/at == 0, &bytes_left, cache, &ids));
      },
      [&](const AddedToken& token) { ids.push_back(token.id); });
  SYNCOPATE_RETURN_IF_ERROR(status);
  if (add_special_tokens) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

// Normalizes each part between added tokens separately, so that every part gets its own prefix.
absl::Status Tokenizer::EncodePart(absl::string_view part, bool at_start, int64_t* bytes_left, PieceCache* cache,
                                   std::vector<int32_t>* ids) const {
  std::string normalized;
  if (!normalizer_.empty()) {
    const int64_t most = std::min(limits_.max_text_bytes, *bytes_left);
    SYNCOPATE_ASSIGN_OR_RETURN(normalized, normalizer_.Normalize(part, most));
    *bytes_left -= static_cast<int64_t>(normalized.size());
    part = normalized;
  }
  if (normalized_added_.empty()) return EncodeNormal(part, at_start, cache, ids);
  absl::Status status;
  normalized_added_.Cut(
      part,
      [&](absl::string_view text, size_t at) { status.Update(EncodeNormal(text, at_start && at == 0, cache, ids)); },
      [&](const AddedToken& token) { ids->push_back(token.id); });
  return status;
}

absl::Status Tokenizer::EncodeNormal(absl::string_view text, bool at_start, PieceCache* cache,
                                     std::vector<int32_t>* ids) const {
  std::string written(text);
  std::vector<Piece> pieces;
  SYNCOPATE_RETURN_IF_ERROR(pre_tokenizer_.Split(at_start, &written, &pieces));
  for (const Piece piece : pieces) {
    model_->Encode(absl::string_view(written).substr(piece.begin, piece.end - piece.begin), cache, ids);
  }
  return absl::OkStatus();
}

std::optional<int32_t> Tokenizer::FindToken(absl::string_view token) const {
  const auto added = added_.find(token);
  if (added != added_.end()) return added->second.id;
  const int32_t id = model_->Find(token);
  if (id < 0) return std::nullopt;
  return id;
}

}  // namespace syncopate::text::tokenizer
