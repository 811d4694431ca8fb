#include "text/template/chat_template.h"

#include <utility>

#include "base/utf8.h"
#include "text/template/lexer.h"
#include "text/template/parser.h"

namespace syncopate::text::chat {
namespace {

constexpr size_t kMostBytes = 1 << 20;

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source) {
  if (source.size() > kMostBytes) return BadTemplate(1, "it is longer than 1 MiB");
  if (!IsUtf8(source)) return BadTemplate(1, "it is not UTF-8");
  SYNCOPATE_ASSIGN_OR_RETURN(Node root, ParseTemplate(source));
  return ChatTemplate(std::make_shared<const Node>(std::move(root)));
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(const nlohmann::ordered_json& context, int64_t now,
                                                  const TemplateLimits& limits) const {
  if (!context.is_object()) {
    return Error(absl::StatusCode::kInvalidArgument, "TEMPLATE_FAILED", "chat template: the context is no object");
  }
  return RenderTemplate(*root_, context, now, limits);
}

}  // namespace syncopate::text::chat
