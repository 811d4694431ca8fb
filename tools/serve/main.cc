// syncopate-serve OPTIONS: the program behind `syncopate serve`, which links no libtorch itself.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/daemon/signals.h"
#include "base/file_system.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/reasons.h"
#include "model/hf_config.h"
#include "services/auth/transport_security.h"
#include "services/endpoint/endpoint.h"
#include "tools/generate/folder_engine.h"
#include "tools/serve/options.h"

namespace syncopate::serve {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(200);

absl::Status CheckAddress(const ServeOptions& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(const HostPort place, ParseListenAddress(options.listen));
  if (place.IsLoopback() || (options.insecure_bind && !options.token_file.empty())) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "NOT_LOOPBACK",
               absl::StrCat(options.listen,
                            " can be reached from other machines, and connections are not encrypted: give "
                            "a loopback address, or --insecure-bind and --token-file"));
}

std::string ModelName(const ServeOptions& options) {
  if (!options.name.empty()) return options.name;
  std::filesystem::path folder = std::filesystem::absolute(options.folder).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  return folder.filename().string();
}

absl::StatusOr<model::ModelConfig> FindShape(const ServeOptions& options, const model::HfModel& model) {
  const int64_t context = options.context > 0 ? options.context : std::min(model.longest_context(), kDefaultContext);
  SYNCOPATE_ASSIGN_OR_RETURN(const model::ModelConfig shape, model.WithContext(context));
  return generate::WithAdapter(shape, options.adapter);
}

// A model without a tokenizer or a template serves what it can; a broken file is an error.
absl::StatusOr<endpoint::ServedModel> LoadTexts(const ServeOptions& options, const model::HfModel& model,
                                                int64_t context) {
  endpoint::ServedModel served;
  served.name = ModelName(options);
  served.end_token_ids = model.eos_token_ids;
  served.context = context;
  if (!std::filesystem::exists(JoinPath(options.folder, "tokenizer.json"))) return served;
  SYNCOPATE_ASSIGN_OR_RETURN(served.tokenizer, text::tokenizer::Tokenizer::Load(FileSystem::Real(), options.folder));
  auto chat = text::chat::ChatFormat::Load(FileSystem::Real(), options.folder);
  if (ErrorReason(chat.status()) == reason::kNoChatTemplate) return served;
  SYNCOPATE_RETURN_IF_ERROR(chat.status());
  for (const char* name : {"chat_template.jinja", "tokenizer_config.json"}) {
    const std::string path = JoinPath(options.folder, name);
    if (!std::filesystem::exists(path)) continue;
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string text,
                               ReadFile(FileSystem::Real(), std::filesystem::canonical(path).string(), 8 << 20));
    endpoint::LearnFormats(text, &served);
  }
  served.tools = text::chat::NamedToolFormat(options.tool_format).value_or(served.tools);
  served.chat = std::make_shared<const text::chat::ChatFormat>(*std::move(chat));
  return served;
}

absl::Status Serve(const ServeOptions& options) {
  SYNCOPATE_RETURN_IF_ERROR(CheckAddress(options));
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::SignalInbox signals, daemon::SignalInbox::Open());
  endpoint::Endpoint::Options serving;
  serving.address = options.listen;
  serving.max_streams = options.max_streams;
  SYNCOPATE_ASSIGN_OR_RETURN(const auto security,
                             auth::TransportSecurity::Load({.role = "", .token_file = options.token_file}));
  if (security != nullptr) {
    serving.judge = [security](const std::string& authorization) { return security->JudgeEndpoint(authorization); };
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const model::HfModel model, model::ReadHfConfig(options.folder));
  SYNCOPATE_ASSIGN_OR_RETURN(const model::ModelConfig shape, FindShape(options, model));
  SYNCOPATE_ASSIGN_OR_RETURN(serving.model, LoadTexts(options, model, shape.max_position_embeddings));
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  SYNCOPATE_ASSIGN_OR_RETURN(const auto engine,
                             generate::StartFolderEngine({.folder = options.folder,
                                                          .adapter = options.adapter,
                                                          .max_sequences = options.max_sequences,
                                                          .threads = options.threads > 0 ? options.threads : cores},
                                                         shape));
  const std::string name = serving.model.name;
  SYNCOPATE_ASSIGN_OR_RETURN(const auto endpoint, endpoint::Endpoint::Start(std::move(serving), engine.get()));
  std::printf("serving %s at %s\n", name.c_str(), endpoint->url().c_str());
  std::fflush(stdout);
  absl::Status failure;
  while (failure.ok() && !signals.Wait(kPoll).interrupt) failure = engine->GetStatus().failure;
  endpoint->Stop();
  engine->Stop();
  return failure;
}

int Main(int argc, char** argv) {
  CLI::App app("Serve a model directory to OpenAI's clients", "syncopate serve");
  ServeOptions options;
  AddServeOptions(&app, &options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kServeUsage;
  }
  // Only warnings are logged; without a file this cannot fail.
  InitLogging({.role = "serve", .minimum = Severity::kWarning}).IgnoreError();
  const absl::Status served = Serve(options);
  if (served.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(served.message()).c_str());
  return kServeFailed;
}

}  // namespace
}  // namespace syncopate::serve

int main(int argc, char** argv) { return syncopate::serve::Main(argc, argv); }
