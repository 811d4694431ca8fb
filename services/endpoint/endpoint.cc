#include "services/endpoint/endpoint.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/uuid.h"
#include "services/endpoint/answer.h"
#include "services/endpoint/answer_writer.h"

namespace syncopate::endpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kDefaultTokens = 16;  // OpenAI's, for /v1/completions
constexpr char kPaths[] = "/v1/models, /v1/completions, /v1/chat/completions, /tokenize, /detokenize and /health";

struct Route {
  absl::string_view path;
  absl::string_view method;
};
constexpr Route kRoutes[] = {{"/health", "GET"},      {"/v1/models", "GET"},       {"/tokenize", "POST"},
                             {"/detokenize", "POST"}, {"/v1/completions", "POST"}, {"/v1/chat/completions", "POST"}};

absl::Status Bad(const std::string& param, const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", message, {{"param", param}});
}

http::Response ErrorResponse(const absl::Status& status) {
  http::Response response = {.code = HttpCode(status), .body = ErrorBody(status)};
  if (response.code == 429 || response.code == 503) response.headers.emplace_back("Retry-After", "1");
  if (response.code == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

http::Response Refusal(int code, const std::string& message) {
  return {.code = code, .body = ErrorBody(code, message)};
}

http::Response JsonResponse(const Json& json) {
  return {.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

int64_t UnixSeconds() { return static_cast<int64_t>(Clock::Real()->UnixSeconds()); }

std::shared_ptr<const TextParameters> FindTexts(const CompletionRequest& request) {
  if (!request.parses_tool_calls) return nullptr;
  return std::make_shared<const TextParameters>(text::chat::FindTextParameters(request.chat.at("tools")));
}

uint64_t RandomSeed() {
  uint64_t seed = 0;
  const std::string bytes = RandomBytes(sizeof(seed));
  std::memcpy(&seed, bytes.data(), sizeof(seed));
  return seed;
}

}  // namespace

void LearnFormats(absl::string_view chat_template, ServedModel* model) {
  if (model->tools == ToolFormat::kNone) model->tools = text::chat::FindToolFormat(chat_template);
  if (model->reasoning == Reasoning::kNone) model->reasoning = FindReasoning(chat_template);
}

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Start(Options options, rollouter::EngineLoop* engine) {
  SYNCOPATE_ASSIGN_OR_RETURN(const HostPort place, ParseListenAddress(options.address));
  if (options.judge == nullptr && !place.IsLoopback()) {
    return Error(absl::StatusCode::kInvalidArgument, "NOT_LOOPBACK",
                 absl::StrCat("the endpoint is not served on ", place.ToString(),
                              ": without tokens it lets every caller in, so only this machine may reach it; give a "
                              "loopback address, or tokens"));
  }
  std::unique_ptr<Endpoint> endpoint(new Endpoint(std::move(options), engine));
  Endpoint* const self = endpoint.get();
  SYNCOPATE_ASSIGN_OR_RETURN(
      endpoint->server_,
      http::HttpServer::Start(
          {.address = place.ToString()}, [self](const http::Request& request) { return self->Guard(request); },
          [](int code, const std::string& message) { return ErrorBody(code, message); },
          [self](std::shared_ptr<http::Exchange> exchange) { self->Handle(exchange); }));
  return endpoint;
}

HostPort Endpoint::address() const { return server_->endpoint(); }

std::string Endpoint::url() const { return absl::StrCat("http://", server_->endpoint().ToString(), "/v1"); }

void Endpoint::Stop() {
  if (server_ != nullptr) server_->Stop();
  aborts_.Stop();
}

http::Response Endpoint::Guard(const http::Request& request) const {
  if (options_.judge == nullptr && !http::NamesThisMachine(request.host, request.port)) {
    return Refusal(421, "this endpoint is for this machine alone: the Host header must name it by a loopback address");
  }
  const bool one_model = absl::StartsWith(request.path, "/v1/models/");
  const auto* const route = std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& known) {
    return known.path == request.path || (one_model && known.path == "/v1/models");
  });
  if (route == std::end(kRoutes)) {
    return Refusal(404, absl::StrCat("nothing is served at ", request.path, "; there are ", kPaths));
  }
  if (request.method != route->method) {
    http::Response response = Refusal(405, absl::StrCat(request.path, " takes ", route->method));
    response.headers.emplace_back("Allow", route->method);
    return response;
  }
  if (options_.judge != nullptr && request.path != "/health") {
    const absl::Status judged = options_.judge(request.authorization);
    if (!judged.ok()) return ErrorResponse(judged);
  }
  // A page of another site may send a form, but JSON only after a question that is not answered here.
  if (request.method == "POST" && !absl::StartsWithIgnoreCase(request.content_type, "application/json")) {
    return Refusal(415, "the body must be JSON, with the header Content-Type: application/json");
  }
  return {};
}

void Endpoint::Handle(const std::shared_ptr<http::Exchange>& exchange) {
  const std::string& path = exchange->request().path;
  const bool is_chat = path == "/v1/chat/completions";
  if (is_chat || path == "/v1/completions") {
    const absl::Status begun = Complete(exchange, is_chat ? RequestKind::kChat : RequestKind::kCompletion);
    if (begun.ok()) return;
    options_.counts->CountEnd(ResultForCode(HttpCode(begun)));
    exchange->Respond([begun] { return ErrorResponse(begun); });
    return;
  }
  const absl::StatusOr<http::Response> reply = Reply(exchange->request());
  exchange->Respond([response = reply.ok() ? *reply : ErrorResponse(reply.status())] { return response; });
}

absl::StatusOr<http::Response> Endpoint::Reply(const http::Request& request) const {
  if (request.path == "/health") return Health();
  if (request.path == "/tokenize") return Tokenize(request.body);
  if (request.path == "/detokenize") return Detokenize(request.body);
  const Json model = {{"id", options_.model.name},
                      {"object", "model"},
                      {"created", UnixSeconds()},
                      {"owned_by", "syncopate"},
                      {"max_model_len", options_.model.context}};
  if (request.path == "/v1/models") return JsonResponse({{"object", "list"}, {"data", Json::array({model})}});
  SYNCOPATE_RETURN_IF_ERROR(CheckModel(std::string(absl::StripPrefix(request.path, "/v1/models/"))));
  return JsonResponse(model);
}

http::Response Endpoint::Health() const {
  const rollouter::EngineStatus status = engine_->GetStatus();
  if (status.state == rollouter::EngineStatus::State::kRunning) return JsonResponse({{"status", "ok"}});
  const std::string why = status.failure.ok()
                              ? "the engine serves no requests now: it is paused, drained, asleep or has no weights"
                              : std::string(status.failure.message());
  return ErrorResponse(Error(absl::StatusCode::kUnavailable, "NOT_READY", why));
}

absl::StatusOr<http::Response> Endpoint::Tokenize(const std::string& body) const {
  SYNCOPATE_ASSIGN_OR_RETURN(const TokenizeRequest request, ParseTokenizeRequest(body));
  SYNCOPATE_RETURN_IF_ERROR(CheckModel(request.model));
  SYNCOPATE_RETURN_IF_ERROR(CheckHasTokenizer());
  std::vector<int32_t> ids;
  if (request.text.has_value()) {
    SYNCOPATE_ASSIGN_OR_RETURN(ids, options_.model.tokenizer->Encode(*request.text, request.add_special_tokens));
  } else {
    SYNCOPATE_ASSIGN_OR_RETURN(ChatPrompt prompt,
                               RenderChat(request.chat, request.chat_arguments, request.add_generation_prompt));
    ids = std::move(prompt.ids);
  }
  return JsonResponse({{"count", ids.size()}, {"max_model_len", options_.model.context}, {"tokens", ids}});
}

absl::StatusOr<http::Response> Endpoint::Detokenize(const std::string& body) const {
  SYNCOPATE_ASSIGN_OR_RETURN(const DetokenizeRequest request, ParseDetokenizeRequest(body));
  SYNCOPATE_RETURN_IF_ERROR(CheckModel(request.model));
  SYNCOPATE_RETURN_IF_ERROR(CheckHasTokenizer());
  return JsonResponse({{"prompt", options_.model.tokenizer->Decode(request.ids, /*skip_special_tokens=*/false)}});
}

absl::Status Endpoint::CheckModel(const std::string& name) const {
  if (name.empty() || name == options_.model.name) return absl::OkStatus();
  return Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
               absl::StrCat("there is no model ", name, " here; ", options_.model.name, " is served"),
               {{"param", "model"}});
}

absl::Status Endpoint::CheckHasTokenizer() const {
  if (options_.model.tokenizer != nullptr) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "NO_TOKENIZER",
               "the model has no tokenizer.json: give prompts as token ids to /v1/completions, with return_token_ids");
}

absl::StatusOr<Endpoint::ChatPrompt> Endpoint::RenderChat(const Json& chat, const Json& arguments,
                                                          bool add_generation_prompt) const {
  SYNCOPATE_RETURN_IF_ERROR(CheckHasTokenizer());
  if (options_.model.chat == nullptr) {
    return Error(absl::StatusCode::kInvalidArgument, "NO_CHAT_TEMPLATE",
                 "the model has no chat template that can be used: send a prompt to /v1/completions",
                 {{"param", "messages"}});
  }
  text::chat::ChatRequest request;
  request.messages = chat.at("messages");
  if (chat.contains("tools")) request.tools = chat.at("tools");
  request.add_generation_prompt = add_generation_prompt;
  request.arguments = arguments;
  const auto rendered = options_.model.chat->Render(request, UnixSeconds());
  if (!rendered.ok()) return Bad("messages", std::string(rendered.status().message()));
  ChatPrompt prompt;
  prompt.reasoning = ReasoningAfter(options_.model.reasoning, rendered->text);
  SYNCOPATE_ASSIGN_OR_RETURN(prompt.ids,
                             options_.model.tokenizer->Encode(rendered->text, /*add_special_tokens=*/false));
  return prompt;
}

absl::StatusOr<Endpoint::PreparedPrompts> Endpoint::Prepare(const CompletionRequest& request) const {
  PreparedPrompts prompts;
  prompts.began = Clock::Real()->Now();
  if (request.kind == RequestKind::kChat) {
    SYNCOPATE_ASSIGN_OR_RETURN(ChatPrompt prompt,
                               RenderChat(request.chat, request.chat_arguments, /*add_generation_prompt=*/true));
    prompts.ids.push_back(std::move(prompt.ids));
    prompts.reasoning = prompt.reasoning;
  }
  for (const Prompt& prompt : request.prompts) {
    if (!prompt.is_text) {
      prompts.ids.push_back(prompt.ids);
      continue;
    }
    SYNCOPATE_RETURN_IF_ERROR(CheckHasTokenizer());
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                               options_.model.tokenizer->Encode(prompt.text, /*add_special_tokens=*/true));
    prompts.ids.push_back(std::move(ids));
  }
  for (const auto& ids : prompts.ids) prompts.tokens += static_cast<int64_t>(ids.size());
  return prompts;
}

absl::StatusOr<int32_t> Endpoint::AnswerTokens(const CompletionRequest& request, int64_t prompt_tokens) const {
  const int64_t room = options_.model.context - prompt_tokens;
  const int32_t wanted = request.max_tokens.value_or(request.kind == RequestKind::kChat ? 1 : kDefaultTokens);
  if (prompt_tokens == 0) return Bad("prompt", "the prompt has no tokens");
  if (room < wanted) {
    return Error(absl::StatusCode::kInvalidArgument, "CONTEXT_LENGTH_EXCEEDED",
                 absl::StrCat("the prompt has ", prompt_tokens, " tokens and the answer may have ", wanted,
                              ", together more than the context of ", options_.model.context),
                 {{"param", request.kind == RequestKind::kChat ? "messages" : "prompt"}});
  }
  if (request.max_tokens.has_value() || request.kind == RequestKind::kCompletion) return wanted;
  return static_cast<int32_t>(std::min<int64_t>(room, std::numeric_limits<int32_t>::max()));
}

absl::StatusOr<std::shared_ptr<void>> Endpoint::TakePlace() const {
  if (++options_.counts->under_way() > options_.max_streams) {
    --options_.counts->under_way();
    return Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_REQUESTS",
                 absl::StrCat(options_.max_streams, " requests are under way; try again when one has ended"));
  }
  return std::shared_ptr<void>(nullptr, [counts = options_.counts](void*) { --counts->under_way(); });
}

absl::Status Endpoint::Complete(const std::shared_ptr<http::Exchange>& exchange, RequestKind kind) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::shared_ptr<void> place, TakePlace());
  SYNCOPATE_ASSIGN_OR_RETURN(const CompletionRequest request, ParseCompletionRequest(exchange->request().body, kind));
  SYNCOPATE_RETURN_IF_ERROR(CheckModel(request.model));
  if (request.parses_tool_calls && options_.model.tools == ToolFormat::kNone) {
    return Error(absl::StatusCode::kInvalidArgument, "UNSUPPORTED_PARAMETER",
                 "tools: the model's chat template writes calls in no form that is known here", {{"param", "tools"}});
  }
  if (!request.stops.empty()) SYNCOPATE_RETURN_IF_ERROR(CheckHasTokenizer());
  SYNCOPATE_ASSIGN_OR_RETURN(const PreparedPrompts prompts, Prepare(request));
  return Submit(request, prompts, exchange, std::move(place));
}

std::shared_ptr<Answer> Endpoint::MakeAnswer(const CompletionRequest& request, const PreparedPrompts& prompts,
                                             const std::shared_ptr<http::Exchange>& exchange,
                                             std::shared_ptr<void> place) const {
  const bool is_chat = request.kind == RequestKind::kChat;
  Answer::Options options = {.exchange = exchange,
                             .stream = request.stream,
                             .stops = request.stops,
                             .end_tokens = EndTokens(request),
                             .tokenizer = options_.model.tokenizer,
                             .choices = request.n * static_cast<int32_t>(prompts.ids.size()),
                             .prompt_tokens = prompts.tokens,
                             .counts = options_.counts,
                             .began = prompts.began,
                             .place = std::move(place)};
  options.writer = {.kind = request.kind,
                    .id = absl::StrCat(is_chat ? "chatcmpl-" : "cmpl-", RandomUuid()),
                    .model = options_.model.name,
                    .created = UnixSeconds(),
                    .n = request.n,
                    .logprobs = request.logprobs,
                    .return_token_ids = request.return_token_ids,
                    .include_usage = request.include_usage,
                    .reasoning = prompts.reasoning,
                    .tool_format = request.parses_tool_calls ? options_.model.tools : ToolFormat::kNone,
                    .text_parameters = FindTexts(request),
                    .prompt_ids = prompts.ids,
                    .tokenizer = options_.model.tokenizer.get()};
  return std::make_shared<Answer>(std::move(options));
}

std::vector<int32_t> Endpoint::EndTokens(const CompletionRequest& request) const {
  std::vector<int32_t> ends = request.sampling.stop_token_ids;
  ends.insert(ends.end(), options_.model.end_token_ids.begin(), options_.model.end_token_ids.end());
  return ends;
}

absl::Status Endpoint::Submit(const CompletionRequest& request, const PreparedPrompts& prompts,
                              const std::shared_ptr<http::Exchange>& exchange, std::shared_ptr<void> place) {
  const std::string name = absl::StrCat("http:", ++requests_, ":");
  const uint64_t seed = request.seed.has_value() ? *request.seed : RandomSeed();
  const size_t count = prompts.ids.size();
  std::vector<rollouter::GenerationRequest> parts(count);
  for (size_t i = 0; i < count; ++i) {
    parts[i].id = absl::StrCat(name, i);
    parts[i].prompt_ids = prompts.ids[i];
    parts[i].sampling = request.sampling;
    parts[i].sampling.stop_token_ids = EndTokens(request);
    SYNCOPATE_ASSIGN_OR_RETURN(parts[i].sampling.max_new_tokens,
                               AnswerTokens(request, static_cast<int64_t>(prompts.ids[i].size())));
    parts[i].priority = kPriority;
    for (int32_t k = 0; k < request.n; ++k) parts[i].seeds.push_back(SampleSeed(HashCombine(seed, i), k));
  }
  const auto answer = MakeAnswer(request, prompts, exchange, std::move(place));
  const auto abort = [this, answer, name, count] {
    answer->Leave();
    // If too many aborts wait, the request ends at its next token.
    (void)aborts_.Post([this, name, count] {
      for (size_t i = 0; i < count; ++i) engine_->Abort(absl::StrCat(name, i));
    });
  };
  for (size_t i = 0; i < count; ++i) {
    const absl::Status submitted =
        engine_->Submit(std::move(parts[i]), answer->SinkFor(static_cast<int32_t>(i) * request.n));
    if (submitted.ok()) continue;
    if (i > 0) abort();
    return submitted;
  }
  options_.counts->CountPrompt(prompts.tokens);
  exchange->SetGoneListener([answer, abort] {
    answer->CountEnd(RequestResult::kLeft);
    abort();
  });
  answer->Begin();
  return absl::OkStatus();
}

}  // namespace syncopate::endpoint
