#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

// The arguments of `syncopate serve`: the command line checks them and passes them to the program that links libtorch.
namespace syncopate::serve {

inline constexpr char kServeProgram[] = "syncopate-serve";
// Exit codes besides 0.
inline constexpr int kServeFailed = 1;
inline constexpr int kServeUsage = 2;

struct ServeOptions {
  std::string folder;        // a Hugging Face model directory
  std::string adapter = {};  // a directory of PEFT adapters for that model; "": none
  std::string listen = "127.0.0.1:8000";
  std::string name = {};        // of the model; "": the folder's
  int64_t context = 0;          // tokens of a prompt and its answer; 0: the model's, at most kDefaultContext
  int64_t max_sequences = 16;   // answers that are made at once
  int64_t max_streams = 1024;   // requests under way
  std::string token_file = {};  // "": none
  bool insecure_bind = false;
  std::string tool_format = "auto";
  int threads = 0;  // 0: as many as the machine has cores
};
inline constexpr int64_t kDefaultContext = 4096;

inline void AddServeOptions(CLI::App* app, ServeOptions* options) {
  app->footer(
      "Loads the model in float32 on the CPU and answers OpenAI's clients until SIGINT or SIGTERM; says its address on "
      "standard output when it is ready. Exit codes: 0 it was told to end; 1 it cannot serve, with the reason; 2 wrong "
      "command line.");
  app->add_option("DIR", options->folder, "Hugging Face model directory")->type_name("DIR")->required();
  app->add_option("--adapter", options->adapter, "PEFT directory of adapters for it")->type_name("DIR");
  app->add_option("--listen", options->listen, "host:port to listen on; port 0: any free one")->capture_default_str();
  app->add_option("--name", options->name, "Name of the model, which clients ask for; the folder's if not given");
  app->add_option("--context", options->context,
                  "Most tokens of a prompt and its answer together; 0: the model's own, but at most 4096")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24));
  app->add_option("--max-sequences", options->max_sequences, "Answers that are made at once; more wait")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app->add_option("--max-streams", options->max_streams, "Requests under way; one more gets 429")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app->add_option("--token-file", options->token_file,
                  "File of bearer tokens, a line 'client TOKEN' or 'admin TOKEN' each; without it everybody on this "
                  "machine is let in")
      ->type_name("FILE");
  app->add_flag("--insecure-bind", options->insecure_bind,
                "Allow an address that is not loopback, unencrypted; needs --token-file");
  app->add_option("--tool-format", options->tool_format,
                  "How the model writes calls of tools; auto: by its chat template")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "none", "hermes", "qwen3.5", "llama3", "mistral"}));
  app->add_option("--threads", options->threads, "Threads that compute; 0: as many as there are cores")
      ->capture_default_str()
      ->check(CLI::Range(0, 256));
}

}  // namespace syncopate::serve
