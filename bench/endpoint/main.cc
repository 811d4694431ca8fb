// What the endpoint gives to many clients at once, with an engine that computes nothing and gives tokens at a pace:
//
//   endpoint_bench                                  all cases
//   endpoint_bench --case pace --streams 1000 --rate 30 --seconds 20
//
// pace: each stream gets `--rate` tokens a second; how late their events are at the client.
// flood: as many tokens as the engine's thread and the server manage; events for each second of a core of the server.
// first: the time to a first token by HTTP and by GenerateStream of RolloutService, from the same engine, in turn.
//
// The client is a process of its own. Prints a JSON object for each case.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "bench/endpoint/paced_backend.h"
#include "bench/endpoint/stream_client.h"
#include "rollouter/engine/engine_loop.h"
#include "services/endpoint/endpoint.h"
#include "services/rollouter/rollout_service.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"

namespace syncopate::bench {
namespace {

using Json = nlohmann::ordered_json;
constexpr absl::Duration kWithin = absl::Minutes(5);

struct Arguments {
  std::vector<std::string> cases = {"pace", "flood", "first"};
  int streams = 1000;
  double rate = 30;
  double seconds = 20;
  int64_t flood_tokens = 400;
  int rounds = 200;
};

double Percentile(std::vector<int32_t>* values, double share) {
  if (values->empty()) return 0;
  const auto at = values->begin() + static_cast<int64_t>(share * static_cast<double>(values->size() - 1));
  std::nth_element(values->begin(), at, values->end());
  return *at / 1000.0;
}

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What a client process needs to find the server.
struct Ports {
  uint16_t http = 0, grpc = 0;
};

// The server's side: an engine, the endpoint and RolloutService over it.
class Served {
 public:
  absl::Status Start(absl::Duration interval, int streams, int64_t tokens) {
    rollouter::EngineLoop::Options options;
    options.model = PacedModel(/*context=*/tokens + 16);
    options.max_sequences = streams;
    options.backend = MakePacedBackend(options.model, interval);
    SYNCOPATE_ASSIGN_OR_RETURN(engine_, rollouter::EngineLoop::Start(options));
    SYNCOPATE_RETURN_IF_ERROR(engine_->Install({1, 1}, 1, kWithin).status());
    endpoint::Endpoint::Options served;
    served.max_streams = streams;
    served.model = {.name = "paced", .context = options.model.max_position_embeddings};
    SYNCOPATE_ASSIGN_OR_RETURN(endpoint_, endpoint::Endpoint::Start(std::move(served), engine_.get()));
    service_ = std::make_unique<rollouterd::RolloutService>(
        rollouterd::RolloutService::Options{.member = {"rollouter", "rollouter-0", 0, 1, "bench"}}, engine_.get());
    SYNCOPATE_ASSIGN_OR_RETURN(server_, rpc::Server::Start({}, {service_.get()}));
    return absl::OkStatus();
  }
  ~Served() {
    if (server_ != nullptr) server_->Stop(absl::ZeroDuration());
    if (endpoint_ != nullptr) endpoint_->Stop();
    if (engine_ != nullptr) engine_->Stop();
  }
  Ports ports() const {
    return {endpoint_->address().port,
            static_cast<uint16_t>(std::stoi(server_->address().substr(server_->address().rfind(':') + 1)))};
  }

 private:
  std::unique_ptr<rollouter::EngineLoop> engine_;
  std::unique_ptr<endpoint::Endpoint> endpoint_;
  std::unique_ptr<rollouterd::RolloutService> service_;
  std::unique_ptr<rpc::Server> server_;
};

// Runs `client` in a process of its own, which is forked before this one has threads, and `server` here meanwhile. The
// client's ports come from the server; what it returns comes back. `cpu`: seconds of all cores that the server used for
// it.
absl::StatusOr<Json> RunBoth(const std::function<absl::StatusOr<Json>(const Ports&)>& client,
                             const std::function<absl::Status(Served*)>& server, double* cpu) {
  int ports[2], results[2];
  if (pipe(ports) != 0 || pipe(results) != 0) return absl::InternalError("no pipe");
  const pid_t child = fork();
  if (child < 0) return absl::InternalError("no process");
  if (child == 0) {
    Ports found;
    if (read(ports[0], &found, sizeof(found)) != static_cast<ssize_t>(sizeof(found))) _exit(1);
    const absl::StatusOr<Json> result = client(found);
    const std::string text = result.ok() ? result->dump() : Json{{"error", result.status().ToString()}}.dump();
    _exit(write(results[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ports[0]);
  close(results[1]);
  std::string text;
  absl::Status started;
  {
    Served served;
    started = server(&served);
    const Ports found = started.ok() ? served.ports() : Ports{};
    const double before = CpuSeconds();
    // Without a server the client gets the end of the pipe.
    if (started.ok() && write(ports[1], &found, sizeof(found)) < 0) started = absl::InternalError("the client is gone");
    close(ports[1]);
    char buffer[4096];
    for (ssize_t size = 0; (size = read(results[0], buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(size));
    }
    *cpu = CpuSeconds() - before;
    close(results[0]);
    waitpid(child, nullptr, 0);
  }
  SYNCOPATE_RETURN_IF_ERROR(started);
  Json result = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!result.is_object()) return absl::InternalError("the client has said nothing");
  if (result.contains("error")) return absl::InternalError(result["error"].get<std::string>());
  return result;
}

absl::StatusOr<Json> ReadAll(uint16_t port, int streams, int64_t tokens) {
  SYNCOPATE_ASSIGN_OR_RETURN(StreamFigures figures, ReadStreams(port, streams, tokens, kWithin));
  return Json{{"streams", streams},
              {"events", figures.events},
              {"seconds", figures.seconds},
              {"events_per_second", static_cast<double>(figures.events) / figures.seconds},
              {"latency_ms_p50", Percentile(&figures.latencies, 0.5)},
              {"latency_ms_p99", Percentile(&figures.latencies, 0.99)},
              {"latency_ms_max", Percentile(&figures.latencies, 1)}};
}

absl::StatusOr<Json> Pace(const Arguments& arguments) {
  const auto tokens = static_cast<int64_t>(arguments.rate * arguments.seconds);
  double cpu = 0;
  SYNCOPATE_ASSIGN_OR_RETURN(
      Json result, RunBoth([&](const Ports& ports) { return ReadAll(ports.http, arguments.streams, tokens); },
                           [&](Served* served) {
                             return served->Start(absl::Seconds(1 / arguments.rate), arguments.streams, tokens);
                           },
                           &cpu));
  result["rate"] = arguments.rate;
  result["server_cores"] = cpu / result["seconds"].get<double>();
  return result;
}

absl::StatusOr<Json> Flood(const Arguments& arguments) {
  double cpu = 0;
  SYNCOPATE_ASSIGN_OR_RETURN(
      Json result,
      RunBoth([&](const Ports& ports) { return ReadAll(ports.http, arguments.streams, arguments.flood_tokens); },
              [&](Served* served) {
                return served->Start(absl::ZeroDuration(), arguments.streams, arguments.flood_tokens);
              },
              &cpu));
  for (const char* paced : {"latency_ms_p50", "latency_ms_p99", "latency_ms_max"}) result.erase(paced);
  result["server_cpu_seconds"] = cpu;
  result["events_per_core_second"] = result["events"].get<double>() / cpu;
  return result;
}

// Measures what TimeFirstTokens measures, by gRPC.
absl::StatusOr<std::vector<int32_t>> TimeFirstTokensOfGrpc(uint16_t port, int rounds) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                             rpc::MakeChannel(absl::StrCat("127.0.0.1:", port)));
  const std::unique_ptr<v1::RolloutService::Stub> stub = v1::RolloutService::NewStub(channel);
  std::vector<int32_t> times;
  for (int round = 0; round < rounds; ++round) {
    grpc::ClientContext context;
    context.set_deadline(rpc::CallDeadline(kWithin));
    v1::GenerateStreamRequest request;
    request.mutable_request()->set_request_id(absl::StrCat("first-", round));
    for (int token : {1, 2, 3}) request.mutable_request()->add_prompt_ids(token);
    request.mutable_request()->mutable_sampling()->set_max_new_tokens(1);
    request.mutable_request()->mutable_sampling()->set_temperature(1);
    const int32_t began = NowStamp();
    const auto reader = stub->GenerateStream(&context, request);
    v1::GenerateStreamResponse response;
    bool is_timed = false;
    while (reader->Read(&response)) {
      if (!std::exchange(is_timed, true)) times.push_back((NowStamp() - began) & 0x7fffffff);
    }
    if (const grpc::Status status = reader->Finish(); !status.ok()) return rpc::FromGrpc(status);
  }
  return times;
}

absl::StatusOr<Json> First(const Arguments& arguments) {
  double cpu = 0;
  return RunBoth(
      [&](const Ports& ports) -> absl::StatusOr<Json> {
        std::vector<int32_t> http, grpc;
        constexpr int kTurns = 10;
        for (int turn = 0; turn < kTurns; ++turn) {
          SYNCOPATE_ASSIGN_OR_RETURN(const auto by_http,
                                     TimeFirstTokens(ports.http, arguments.rounds / kTurns, kWithin));
          http.insert(http.end(), by_http.begin(), by_http.end());
          SYNCOPATE_ASSIGN_OR_RETURN(const auto by_grpc, TimeFirstTokensOfGrpc(ports.grpc, arguments.rounds / kTurns));
          grpc.insert(grpc.end(), by_grpc.begin(), by_grpc.end());
        }
        return Json{{"rounds", http.size()},
                    {"http_ms_p50", Percentile(&http, 0.5)},
                    {"http_ms_p99", Percentile(&http, 0.99)},
                    {"grpc_ms_p50", Percentile(&grpc, 0.5)},
                    {"grpc_ms_p99", Percentile(&grpc, 0.99)},
                    {"difference_ms_p50", Percentile(&http, 0.5) - Percentile(&grpc, 0.5)}};
      },
      [&](Served* served) { return served->Start(absl::ZeroDuration(), 16, 16); }, &cpu);
}

// Returns the process's exit code.
int RunCase(const std::string& name, const Arguments& arguments) {
  absl::StatusOr<Json> result = name == "pace"    ? Pace(arguments)
                                : name == "flood" ? Flood(arguments)
                                                  : First(arguments);
  if (!result.ok()) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), result.status().ToString().c_str());
    return 1;
  }
  Json line = {{"case", name}};
  line.update(*result);
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
  return 0;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("What the endpoint gives to many clients, with a paced engine");
  app.add_option("--case", arguments.cases)->delimiter(',')->check(CLI::IsMember({"pace", "flood", "first"}));
  app.add_option("--streams", arguments.streams)->check(CLI::Range(1, 4000))->capture_default_str();
  app.add_option("--rate", arguments.rate, "Tokens a second of each stream")
      ->check(CLI::Range(0.1, 1000.0))
      ->capture_default_str();
  app.add_option("--seconds", arguments.seconds, "Of the case pace")
      ->check(CLI::Range(1.0, 120.0))
      ->capture_default_str();
  app.add_option("--flood-tokens", arguments.flood_tokens, "Of each stream")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--rounds", arguments.rounds, "Of the case first")
      ->check(CLI::Range(10, 10000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  for (const std::string& name : arguments.cases) {
    // In a process of its own: after a case this one would have gRPC, which does not survive the fork of the next client.
    const pid_t child = fork();
    if (child == 0) _exit(RunCase(name, arguments));
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace syncopate::bench

int main(int argc, char** argv) { return syncopate::bench::Main(argc, argv); }
