// record: a communicator around another one, that writes what this was asked: a line of JSON for each
// transfer, with its times in nanoseconds since the start (0: never) and its StatusCode.
//
// Everything is passed on, also Query: what an extension of the inner one does is not recorded
// (transfers of a group, of communicators split from it, of a recorded step after the first time,
// parameters that are registered, stored or loaded).
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kit/communicator.h"
#include "kit/create.h"
#include "kit/inner_communicator.h"
#include "kit/options.h"
#include "kit/outer_work.h"
#include "kit/rendezvous.h"

namespace engine::record {
namespace {

// A stream orders lines by its lock, and its buffer, of some thousands of them, keeps the system out of
// transfers. The last that has it closes it, perhaps a work that outlives its communicator.
using File = std::shared_ptr<std::FILE>;
constexpr size_t kBufferBytes = 1 << 20;

constexpr int kHeldWorks = 8;  // by threads of the inner communicator, see WorkPool

class RecordedWork final : public kit::OuterWork {
 public:
  void SetFile(const File& file, int64_t start_ns) {
    file_ = file;
    start_ns_ = start_ns;
    submitted_ns_ = kit::MonotonicNs();
  }

 private:
  void Ended(const Status& status) noexcept override {
    const Transfer& t = transfer();
    const auto since_start = [this](int64_t ns) { return ns == 0 ? 0 : ns - start_ns_; };
    std::fprintf(file_.get(),
                 "{\"kind\":\"%s\",\"dtype\":\"%s\",\"count\":%" PRId64
                 ",\"bytes\":%zu,\"key\":%" PRIu64 ",\"priority\":%" PRId32 ",\"bucket\":%" PRId64
                 ",\"sequence\":%" PRIu64 ",\"submitted_ns\":%" PRId64 ",\"started_ns\":%" PRId64
                 ",\"done_ns\":%" PRId64 ",\"status\":%d}\n",
                 Name(t.kind), Name(t.dtype), t.count, kit::SizeBytes(t), t.key, t.priority,
                 t.bucket == Transfer().bucket ? -1 : int64_t{t.bucket}, t.sequence,
                 since_start(submitted_ns_), since_start(started_ns()),
                 since_start(kit::MonotonicNs()), static_cast<int>(status.code()));
  }

  File file_;
  int64_t start_ns_ = 0, submitted_ns_ = 0;
};

class RecordCommunicator final : public CommunicatorBase {
 public:
  RecordCommunicator(File file, std::unique_ptr<Communicator> inner)
      : file_(std::move(file)), inner_(std::move(inner)) {}

  void* Query(std::string_view id) noexcept override { return inner_->Query(id, 0); }
  CommunicatorTraits traits() const noexcept override { return inner_->traits(); }
  void Abort(const Status& reason) noexcept override { inner_->Abort(reason); }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    ENGINE_ASSIGN_OR_RETURN(kit::PooledWork* const taken, works_.Take(transfer));
    auto* const work = static_cast<RecordedWork*>(taken);
    work->SetFile(file_, start_ns_);
    ENGINE_RETURN_IF_ERROR(work->SubmitTo(*inner_));
    *out = work;
    return {};
  }

 private:
  const File file_;
  const int64_t start_ns_ = kit::MonotonicNs();
  kit::WorkPool works_{kHeldWorks, kit::WorkPool::Of<RecordedWork>()};
  const std::unique_ptr<Communicator> inner_;
};

// "run.jsonl" of rank 2 is "run.rank2.jsonl", of a second communicator "run.rank2.1.jsonl".
Result<std::string> FileOf(Host& host, std::string file) {
  const RankInfo info = host.rank_info();
  const std::string member = (info.is_server != 0 ? "server" : "rank") + std::to_string(info.rank);
  ENGINE_ASSIGN_OR_RETURN(const std::string number, kit::FreePrefix(host, member));
  ENGINE_RETURN_IF_ERROR(kit::SetText(host, number + "/" + member, ""));
  const size_t dot = file.find('.', file.rfind('/') + 1);
  file.insert(std::min(dot, file.size()), "." + member + (number == "0" ? "" : "." + number));
  return file;
}

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  try {
    ENGINE_ASSIGN_OR_RETURN(const std::string path,
                            FileOf(host, std::string(options.String("file"))));
    std::FILE* const opened = std::fopen(path.c_str(), "we");
    if (opened == nullptr) {
      return Status::Error(StatusCode::kStorage, "cannot write '%s' (%s): set record.file",
                           path.c_str(), std::strerror(errno));
    }
    std::setvbuf(opened, nullptr, _IOFBF, kBufferBytes);
    const File file(opened, [&host](std::FILE* full) {
      if (std::fflush(full) != 0 || std::ferror(full) != 0) {
        host.Log(LogLevel::kWarning, "the file could not be written: transfers are missing in it");
      }
      std::fclose(full);
    });
    ENGINE_ASSIGN_OR_RETURN(auto inner, kit::MakeInner(host, options.String("inner"), "inner"));
    *out = new RecordCommunicator(file, std::move(inner));
    return {};
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot start record: %s", error.what());
  }
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kCommunicator, "record", "1.0.0",
    "writes what another communicator is asked, with times, a line for each transfer", Create,
    std::array{kit::PluginOption("inner", "tcp", "communicator", "whose transfers are recorded"),
               kit::StringOption("file", "transfers.jsonl",
                                 "of lines of JSON; each rank adds its number to the name")});

}  // namespace engine::record
