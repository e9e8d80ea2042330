// The rank that needs a connection first makes it. Its peer answers at once, whatever its lanes
// wait for, so no wait for a connection is part of a circle. When both connect at the same time the
// connection of the higher rank stays. The higher rank decides that, under its mutex: it takes a
// hello of the lower one unless it is connecting itself, and does not connect once it has taken it.
//
// A slot goes through these states, and never back:
//
//   empty -> connecting -> socket           this rank connected
//   empty -> connecting -> taken -> socket  both did, and the peer is the higher one
//   empty -> taken -> socket                the peer connected first
//
// A lane's thread sets `connecting`, the acceptor's `taken`, both under mutex_. A socket that is in
// its slot is read and written without the mutex by the lane alone; Shutdown only shuts it down, and
// descriptors are closed when no thread is left.
#include "tcp_kit/connections.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace engine::tcp {
namespace {

constexpr size_t kMinKeyBytes = 32;
constexpr int kOtherDescriptors = 2;  // the listener, and a connection whose hello is read

Status Lost(int peer, int error) noexcept {
  if (error == EMFILE || error == ENFILE) return NoDescriptor("a connection", error);
  return Status::Error(StatusCode::kPeerLost, "cannot connect to rank %d (%s)", peer,
                       std::strerror(error))
      .WithRank(peer);
}

Result<std::string> ReadKeyFile(const std::string& path, const char* plugin) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (file && content.size() >= kMinKeyBytes) return content;
  return Status::Error(StatusCode::kMissingInput,
                       "no key in the file '%s': give %s.key_file a file of at least %zu random "
                       "bytes that is the same on all ranks",
                       path.c_str(), plugin, kMinKeyBytes);
}

// Connections are made when they are needed, perhaps hours from now: whether there are descriptors
// for all of them is known at once.
Status CheckDescriptors(const kit::UniqueFd& any, int needed) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const kit::UniqueFd free(fcntl(any.get(), F_DUPFD_CLOEXEC, 0));  // the lowest that is not in use
  if (!free) return NoDescriptor("connections", errno);
  if (static_cast<rlim_t>(free.get() + needed) <= limit.rlim_cur) return {};
  return Status::Error(StatusCode::kResourceExhausted,
                       "%d connections to other ranks need more descriptors than the limit of %llu "
                       "open files: raise it (ulimit -n)",
                       needed, static_cast<unsigned long long>(limit.rlim_cur));
}

// What a peer answers to a hello.
int ReadAnswer(const kit::UniqueFd& socket, const kit::UniqueFd& stop, Mac* answer) {
  for (size_t received = 0; received < answer->size();) {
    if (const int error = WaitFor(socket, POLLIN, stop)) return error;
    const ssize_t bytes =
        recv(socket.get(), answer->data() + received, answer->size() - received, MSG_DONTWAIT);
    if (bytes == 0) return ECONNRESET;
    if (bytes < 0 && errno != EAGAIN && errno != EINTR) return errno;
    received += bytes < 0 ? 0 : static_cast<size_t>(bytes);
  }
  return 0;
}

}  // namespace

Result<std::unique_ptr<Connections>> Connections::Open(Host& host,
                                                       const NetworkSettings& settings) {
  std::unique_ptr<Connections> connections(new Connections(host, settings));
  if (connections->lanes() > 0) ENGINE_RETURN_IF_ERROR(connections->Run());
  return connections;
}

Connections::Connections(Host& host, const NetworkSettings& settings)
    : settings_(settings),
      ranks_(host.rank_info()),
      rendezvous_(host),
      peers_(static_cast<size_t>(ranks_.world_size)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      slots_(static_cast<size_t>(ranks_.world_size * lanes())) {}

Connections::~Connections() {
  Shutdown();
}

Status Connections::Run() {
  if (!stop_) return NoDescriptor("connections", errno);
  ENGINE_RETURN_IF_ERROR(
      CheckDescriptors(stop_, settings_.lanes * (ranks_.world_size - 1) + kOtherDescriptors));
  ENGINE_ASSIGN_OR_RETURN(key_file_, ReadKeyFile(settings_.key_file, settings_.plugin));
  ENGINE_RETURN_IF_ERROR(rendezvous_.Begin());
  std::string record;
  ENGINE_RETURN_IF_ERROR(StartListening(&record));
  ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> records, rendezvous_.Exchange(record));
  for (int peer = 0; peer < ranks_.world_size; ++peer) {
    if (peer == ranks_.rank) continue;
    ENGINE_RETURN_IF_ERROR(ReadRecord(peer, records[static_cast<size_t>(peer)]));
  }
  return {};
}

Status Connections::StartListening(std::string* record) {
  const bool one_host = ranks_.one_host != 0;
  Endpoint own;
  ENGINE_ASSIGN_OR_RETURN(kit::UniqueFd listener, Listen(settings_.interface, settings_.hostname,
                                                         one_host, settings_.plugin, &own));
  // There is no congestion on the loopback interface, but BBR, the choice of some hosts, paces
  // there too.
  const bool chosen = !settings_.congestion_control.empty();
  socket_settings_ = {.congestion_control = chosen         ? settings_.congestion_control
                                            : own.loopback ? "cubic"
                                                           : "",
                      .congestion_control_required = chosen,
                      .send_buffer_bytes = settings_.send_buffer_bytes};
  ENGINE_RETURN_IF_ERROR(Prepare(listener, socket_settings_));
  ENGINE_ASSIGN_OR_RETURN(const std::string token, Key::NewToken());
  ENGINE_ASSIGN_OR_RETURN(key_, Key::Of(token, key_file_));
  acceptor_ = std::make_unique<Acceptor>(
      std::move(listener), *key_, stop_,
      [this](const Hello& hello, kit::UniqueFd socket) { Take(hello, std::move(socket)); });
  *record = own.address + ' ' + own.port + ' ' + std::to_string(settings_.lanes) + ' ' + token +
            ' ' + key_->Fingerprint();
  return {};
}

// What differs between ranks is found here, by all of them, and not by a connection that fails.
Status Connections::ReadRecord(int peer, const std::string& record) {
  std::istringstream fields(record);
  std::string token, fingerprint;
  int lanes = 0;
  Peer& entry = peers_[static_cast<size_t>(peer)];
  fields >> entry.endpoint.address >> entry.endpoint.port >> lanes >> token >> fingerprint;
  if (lanes != settings_.lanes) {
    return Status::Error(StatusCode::kRendezvous,
                         "rank %d has io_threads = %d and this rank %d: all ranks must have the "
                         "same io_threads and the same %s",
                         peer, lanes, settings_.lanes, settings_.plugin)
        .WithRank(peer);
  }
  ENGINE_ASSIGN_OR_RETURN(entry.key, Key::Of(token, key_file_));
  if (fingerprint == entry.key->Fingerprint()) return {};
  return Status::Error(StatusCode::kConfig,
                       "rank %d has another key than this rank: give all ranks the same key_file "
                       "of %s",
                       peer, settings_.plugin)
      .WithRank(peer);
}

// The mutex is free while this rank connects: the acceptor needs it to answer others meanwhile.
Result<int> Connections::Get(int lane, int peer) noexcept {
  std::unique_lock lock(mutex_);
  Slot& slot = SlotOf(lane, peer);
  if (!slot.socket && !slot.taken && !stopped_) {
    slot.connecting = true;
    lock.unlock();
    kit::UniqueFd socket;
    const Status connected = ConnectTo(peer, lane, &socket);
    lock.lock();
    // The peer may have ended this attempt because its own came first.
    if (!connected.ok() && !slot.taken) return connected;
    if (socket) slot.socket = std::move(socket);
  }
  changed_.wait(lock, [&] { return slot.socket || stopped_; });
  if (stopped_) return Lost(peer, ECANCELED);
  return slot.socket.get();
}

Status Connections::ConnectTo(int peer, int lane, kit::UniqueFd* socket) {
  const Peer& entry = peers_[static_cast<size_t>(peer)];
  kit::UniqueFd connected;
  if (const int error = Connect(entry.endpoint, socket_settings_, stop_, &connected)) {
    return Lost(peer, error);
  }
  Hello hello = entry.key->MakeHello(ranks_.rank, lane);
  iovec piece{&hello, sizeof(hello)};
  Mac answer;
  int error = Send(connected.get(), {&piece, 1});
  if (error == 0) error = ReadAnswer(connected, stop_, &answer);
  if (error != 0) return Lost(peer, error);
  if (Equal(answer, entry.key->Answer(hello, false))) return {};
  if (Equal(answer, entry.key->Answer(hello, true))) {
    *socket = std::move(connected);
    return {};
  }
  return Status::Error(StatusCode::kPeerLost,
                       "what listens at %s port %s is not rank %d, which may have ended",
                       entry.endpoint.address.c_str(), entry.endpoint.port.c_str(), peer)
      .WithRank(peer);
}

void Connections::Take(const Hello& hello, kit::UniqueFd socket) noexcept {
  if (hello.rank == ranks_.rank || hello.rank < 0 || hello.rank >= ranks_.world_size ||
      hello.lane < 0 || hello.lane >= settings_.lanes) {
    return;
  }
  std::unique_lock lock(mutex_);
  Slot& slot = SlotOf(hello.lane, hello.rank);
  if (slot.socket || slot.taken || stopped_) return;  // each peer has one for each lane
  const bool taken = slot.taken = !slot.connecting || hello.rank > ranks_.rank;
  lock.unlock();
  // Before the socket is in its slot, so that the answer is the first thing on it. If this fails,
  // so will the first transfer.
  Mac answer = key_->Answer(hello, taken);
  iovec piece{answer.data(), answer.size()};
  (void)Send(socket.get(), {&piece, 1});
  lock.lock();
  if (!taken || stopped_) return;
  slot.socket = std::move(socket);
  changed_.notify_all();
}

// Three kinds of waits end here: for a slot (changed_), in reads and writes of sockets (shutdown),
// and for a connection or an answer (stop_). A socket that comes later finds stopped_ and is closed.
void Connections::Shutdown() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const Slot& slot : slots_) {
      if (slot.socket) shutdown(slot.socket.get(), SHUT_RDWR);
    }
    changed_.notify_all();
  }
  if (stop_) eventfd_write(stop_.get(), 1);
}

Connections::Slot& Connections::SlotOf(int lane, int peer) noexcept {
  return slots_[static_cast<size_t>(lane * ranks_.world_size + peer)];
}

}  // namespace engine::tcp
