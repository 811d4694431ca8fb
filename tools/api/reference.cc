#include "tools/api/reference.h"

#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "services/config/field_value.h"
#include "services/config/peer_names.h"
#include "services/config/schema.h"

namespace syncopate::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using google::protobuf::SourceLocation;

// Files whose messages are no calls: the configuration, its options, and files on disk.
const std::set<std::string>& FilesLeftOut() {
  static const auto* const files = new std::set<std::string>{"syncopate/v1/config.proto", "syncopate/v1/options.proto",
                                                             "syncopate/v1/records.proto"};
  return *files;
}

// A declaration's comments as one paragraph: the comment before it, then the one after it.
template <typename Declaration>
std::string GetComment(const Declaration& declaration) {
  SourceLocation location;
  if (!declaration.GetSourceLocation(&location)) return "";
  const std::string both = absl::StrCat(location.leading_comments, "\n", location.trailing_comments);
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(both, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) lines.emplace_back(line);
  }
  return absl::StrJoin(lines, " ");
}

// The comment at the beginning of a file, before its `syntax` line.
std::string GetHead(const FileDescriptor& file) {
  SourceLocation location;
  constexpr int kSyntax = google::protobuf::FileDescriptorProto::kSyntaxFieldNumber;
  if (!file.GetSourceLocation({kSyntax}, &location)) return "";
  return std::string(absl::StripAsciiWhitespace(absl::StrReplaceAll(location.leading_comments, {{"\n ", "\n"}})));
}

// Text that stays in one table cell; angle brackets, which Markdown reads as HTML, are escaped.
std::string Cell(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"<", "\\<"}, {">", "\\>"}, {"\n", " "}});
}

// Turns "syncopate.v1.ExchangeRequest.Hello" into "ExchangeRequest.Hello"; names of other packages stay whole.
template <typename Type>
std::string GetName(const Type& type) {
  const std::string prefix = type.file()->package() + ".";
  const bool ours = absl::StartsWith(prefix, "syncopate.");
  return ours ? type.full_name().substr(prefix.size()) : type.full_name();
}

// The anchor of a heading: small letters and digits.
template <typename Type>
std::string LinkTo(const Type& type) {
  const std::string name = GetName(type);
  if (name == type.full_name()) return absl::StrCat("`", name, "`");
  return absl::StrCat("[", name, "](#", absl::AsciiStrToLower(absl::StrReplaceAll(name, {{".", ""}})), ")");
}

std::string GetType(const FieldDescriptor& field) {
  if (field.is_map()) {
    return absl::StrCat("map of ", GetType(*field.message_type()->map_key()), " to ",
                        GetType(*field.message_type()->map_value()));
  }
  std::string type = field.type_name();
  if (field.message_type() != nullptr) type = LinkTo(*field.message_type());
  if (field.enum_type() != nullptr) type = LinkTo(*field.enum_type());
  return absl::StrCat(field.is_repeated() ? "repeated " : "", type);
}

std::string Paragraph(const std::string& text) { return text.empty() ? "" : absl::StrCat(Cell(text), "\n\n"); }

// Joins two texts as sentences.
std::string Sentences(const std::string& first, const std::string& second) {
  return absl::StrCat(first, first.empty() || second.empty() ? "" : " ", second);
}

std::string MessageText(const Descriptor& message) {
  std::string text = absl::StrCat("#### ", GetName(message), "\n\n", Paragraph(GetComment(message)));
  if (message.field_count() == 0) return text + "No fields.\n\n";
  absl::StrAppend(&text, "| # | field | type | |\n|---|---|---|---|\n");
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const auto* oneof = field.real_containing_oneof();
    const std::string choice = oneof == nullptr ? "" : absl::StrCat("one of `", oneof->name(), "`.");
    absl::StrAppend(&text, "| ", field.number(), " | `", field.name(), "` | ", GetType(field), " | ",
                    Sentences(choice, Cell(GetComment(field))), " |\n");
  }
  return text + "\n";
}

std::string EnumText(const EnumDescriptor& type) {
  std::string text =
      absl::StrCat("#### ", GetName(type), "\n\n", Paragraph(GetComment(type)), "| # | value | |\n|---|---|---|\n");
  for (int i = 0; i < type.value_count(); ++i) {
    absl::StrAppend(&text, "| ", type.value(i)->number(), " | `", type.value(i)->name(), "` | ",
                    Cell(GetComment(*type.value(i))), " |\n");
  }
  return text + "\n";
}

std::string ServiceText(const ServiceDescriptor& service) {
  std::string text =
      absl::StrCat("### ", service.name(), "\n\n", Paragraph(Sentences(GetHead(*service.file()), GetComment(service))),
                   "| call | request | response | |\n|---|---|---|---|\n");
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& call = *service.method(i);
    absl::StrAppend(&text, "| `", call.name(), "` | ", call.client_streaming() ? "stream of " : "",
                    LinkTo(*call.input_type()), " | ", call.server_streaming() ? "stream of " : "",
                    LinkTo(*call.output_type()), " | ", Cell(GetComment(call)), " |\n");
  }
  return text + "\n";
}

std::string SectionText(const FieldDescriptor& section, const config::ConfigSchema& schema) {
  std::string text = absl::StrCat("### ", section.name(), "\n\n", Paragraph(GetComment(section)),
                                  "| key | default | may be | |\n|---|---|---|---|\n");
  v1::RunConfig defaults;
  config::SetDefaults(schema, &defaults);
  for (const config::ConfigKey& key : schema.keys()) {
    if (key.section->name() != section.name()) continue;
    const std::string value = config::GetValue(key, defaults);
    absl::StrAppend(&text, "| `", key.path, "` | ", value == "\"\"" ? "" : absl::StrCat("`", value, "`"), " | ",
                    Cell(key.Expected()), " | ", Cell(key.Doc()), " |\n");
  }
  return text + "\n";
}

// The keys' names in other programs, which the error for an unknown key also gives.
std::string PeerNamesText() {
  std::string text =
      "## Names elsewhere\n\nWhat other programs call these keys, by the last words of their paths. A file that uses "
      "one "
      "is told the name here. The meanings are near, not always the same: read the key's own line.\n\n| here |";
  for (const char* const peer : config::kPeers) absl::StrAppend(&text, " ", peer, " |");
  absl::StrAppend(&text, "\n|---|", absl::StrJoin(std::vector<std::string>(config::kPeers.size(), "---|"), ""), "\n");
  for (const config::PeerNames& entry : config::AllPeerNames()) {
    absl::StrAppend(&text, "| `", entry.key, "` |");
    for (const std::string& names : entry.names) {
      absl::StrAppend(&text,
                      names.empty() ? " " : absl::StrCat(" `", absl::StrReplaceAll(names, {{" ", "`, `"}}), "` "), "|");
    }
    text += "\n";
  }
  return text;
}

std::string WithOneNewlineAtTheEnd(std::string text) {
  while (absl::EndsWith(text, "\n\n")) text.pop_back();
  return text;
}

}  // namespace

std::string ApiReference(const ApiDescriptors& api) {
  std::string services = "## Services\n\n", messages = "## Messages\n\n";
  for (const FileDescriptor* file : api.files()) {
    if (FilesLeftOut().count(file->name()) > 0) continue;
    for (int i = 0; i < file->service_count(); ++i) services += ServiceText(*file->service(i));
    absl::StrAppend(&messages, "### ", file->name(), "\n\n");
    for (const Descriptor* message : MakeMessages(*file)) messages += MessageText(*message);
    for (const EnumDescriptor* type : GetEnums(*file)) messages += EnumText(*type);
  }
  return WithOneNewlineAtTheEnd(services + messages);
}

std::string ConfigReference(const ApiDescriptors& api) {
  const Descriptor* config = api.pool().FindMessageTypeByName(v1::RunConfig::descriptor()->full_name());
  if (config == nullptr) return "";
  const config::ConfigSchema schema;
  std::string text = "## Keys\n\n";
  for (int i = 0; i < config->field_count(); ++i) text += SectionText(*config->field(i), schema);
  return WithOneNewlineAtTheEnd(text + PeerNamesText());
}

absl::StatusOr<std::string> ReplaceGenerated(const std::string& page, const std::string& reference) {
  const std::string mark = absl::StrCat("\n", kGeneratedBelow, "\n");
  const size_t found = page.find(mark);
  if (found == std::string::npos) {
    return Error(absl::StatusCode::kInvalidArgument, "NO_MARK",
                 absl::StrCat("the page has no line `", kGeneratedBelow, "`, below which the generated part goes"));
  }
  return absl::StrCat(page.substr(0, found), mark, "\n", reference);
}

}  // namespace syncopate::api
