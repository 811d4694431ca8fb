#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/host_port.h"
#include "base/worker.h"
#include "rollouter/engine/engine_loop.h"
#include "services/endpoint/completion_request.h"
#include "services/endpoint/reasoning.h"
#include "services/endpoint/request_counts.h"
#include "services/http/http_server.h"
#include "text/template/chat_format.h"
#include "text/template/tool_calls.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::endpoint {

class Answer;

// The texts of the model that an endpoint serves.
struct ServedModel {
  std::string name;                                                       // what clients ask for
  std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer = nullptr;  // null: token ids alone
  std::shared_ptr<const text::chat::ChatFormat> chat = nullptr;           // null: no conversations
  text::chat::ToolFormat tools = text::chat::ToolFormat::kNone;           // how it writes calls of tools
  Reasoning reasoning = Reasoning::kNone;                                 // how it writes thoughts
  std::vector<int32_t> end_token_ids = {};
  int64_t context = 0;  // tokens of a prompt and its answer together
};

// Sets the formats of tools and thoughts by the text of a file with the model's chat template, where they are kNone.
void LearnFormats(absl::string_view chat_template, ServedModel* model);

// OpenAI's HTTP interface over an engine (docs/endpoint.md). Requests have a lower priority than leases. A client that
// leaves ends its request. Thread-safe.
class Endpoint {
 public:
  static constexpr int32_t kPriority = -1;  // of leases: 0

  struct Options {
    std::string address = "127.0.0.1:0";
    int64_t max_streams = 1024;  // requests for answers under way
    ServedModel model;
    std::shared_ptr<RequestCounts> counts =
        std::make_shared<RequestCounts>();  // what requests for answers are counted by
    // Judges the value of an Authorization header; null: everybody on this machine is let in, which needs a loopback
    // address, and a request must name that as its Host.
    std::function<absl::Status(const std::string& authorization)> judge = nullptr;
  };

  // Listens and serves. `engine` must outlive the endpoint. Errors of HttpServer; INVALID_ARGUMENT (reason
  // NOT_LOOPBACK).
  static absl::StatusOr<std::unique_ptr<Endpoint>> Start(Options options, rollouter::EngineLoop* engine);
  ~Endpoint() { Stop(); }

  HostPort address() const;  // with the port that was bound
  std::string url() const;   // "http://127.0.0.1:8000/v1"

  // Ends all requests and joins the threads. Idempotent, not thread-safe.
  void Stop();

 private:
  Endpoint(Options options, rollouter::EngineLoop* engine) : options_(std::move(options)), engine_(engine) {}

  struct PreparedPrompts {
    std::vector<std::vector<int32_t>> ids = {};
    int64_t tokens = 0;
    absl::Time began;                        // the request's arrival
    Reasoning reasoning = Reasoning::kNone;  // of the answers
  };
  struct ChatPrompt {
    std::vector<int32_t> ids;
    Reasoning reasoning = Reasoning::kNone;  // of the answer to it
  };

  http::Response Guard(const http::Request& request) const;
  void Handle(const std::shared_ptr<http::Exchange>& exchange);
  absl::StatusOr<http::Response> Reply(const http::Request& request) const;
  http::Response Health() const;
  absl::StatusOr<http::Response> Tokenize(const std::string& body) const;
  absl::StatusOr<http::Response> Detokenize(const std::string& body) const;
  absl::Status Complete(const std::shared_ptr<http::Exchange>& exchange, RequestKind kind);
  absl::Status Submit(const CompletionRequest& request, const PreparedPrompts& prompts,
                      const std::shared_ptr<http::Exchange>& exchange, std::shared_ptr<void> place);
  std::shared_ptr<Answer> MakeAnswer(const CompletionRequest& request, const PreparedPrompts& prompts,
                                     const std::shared_ptr<http::Exchange>& exchange,
                                     std::shared_ptr<void> place) const;
  // The tokens that end an answer: the request's and the model's.
  std::vector<int32_t> EndTokens(const CompletionRequest& request) const;
  absl::StatusOr<PreparedPrompts> Prepare(const CompletionRequest& request) const;
  absl::StatusOr<ChatPrompt> RenderChat(const nlohmann::ordered_json& chat, const nlohmann::ordered_json& arguments,
                                        bool add_generation_prompt) const;
  absl::StatusOr<int32_t> AnswerTokens(const CompletionRequest& request, int64_t prompt_tokens) const;
  absl::Status CheckModel(const std::string& name) const;
  absl::Status CheckHasTokenizer() const;
  // A place among the requests under way, free again when the last copy is destroyed. RESOURCE_EXHAUSTED (reason
  // TOO_MANY_REQUESTS).
  absl::StatusOr<std::shared_ptr<void>> TakePlace() const;

  const Options options_;
  rollouter::EngineLoop* const engine_;
  std::atomic<int64_t> requests_ = 0;  // for their names
  Worker aborts_{1 << 16};             // an abort waits for a decode step
  std::unique_ptr<http::HttpServer> server_;
};

}  // namespace syncopate::endpoint
